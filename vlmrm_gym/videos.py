"""Videos of episodes with a plot of the reward (needs the extra "train")."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

PLOT_HEIGHT = 72
"""Height of the reward plot under the frames, in pixels."""
LINE_HEIGHT = 16
"""By which each further curve makes the plot higher, in pixels."""
COLORS = ((255, 196, 84), (96, 178, 255), (126, 217, 87), (255, 128, 171), (186, 146, 255), (77, 208, 195))
"""Of the curves, in order."""


def record_video(
    env: gym.Env[Any, Any], policy: Callable[[Any], Any], path: str | Path, *, seed: int, title: str = ""
) -> None:
    """Play one episode and write it as a video; see `save_video`.

    Args:
        env: An environment whose `render` returns arrays.
        policy: Maps an observation to an action.
        path: The file, ending in ".mp4" or ".gif".
        seed: Seed of the episode.
        title: Text above the plot, such as the prompt.

    Raises:
        ValueError: Unknown file type.
        OSError: The file could not be written.
    """
    frames, rewards, done = [], [], False
    observation, _ = env.reset(seed=seed)
    while not done:
        observation, reward, terminated, truncated, _ = env.step(policy(observation))
        frames.append(env.render())
        rewards.append(float(reward))
        done = terminated or truncated
    save_video(path, frames, rewards, title=title)


def save_video(
    path: str | Path,
    frames: Sequence[NDArray[np.uint8]],
    rewards: Sequence[float],
    *,
    title: str = "",
    fps: int = 30,
) -> None:
    """Write an episode as a video: each frame, and below it a plot of the rewards so far.

    Args:
        path: The file, ending in ".mp4" or ".gif".
        frames: The scored frames, uint8 (H, W, 3) each.
        rewards: Their rewards, as many as frames.
        title: Text above the plot, such as the prompt.
        fps: Frames per second.

    Raises:
        ValueError: There are no frames, the number of rewards differs, or the file type is unknown.
    """
    import imageio.v2 as imageio

    path = Path(path)
    if path.suffix not in (".mp4", ".gif"):
        raise ValueError(f"`path` must end in .mp4 or .gif. Received {str(path)!r}.")
    if not len(frames) == len(rewards) > 0:
        raise ValueError(
            "`frames` and `rewards` must have the same length, with at least one frame. "
            f"Received {len(frames)} and {len(rewards)}."
        )
    low, high = min(rewards), max(rewards)
    options: dict[str, Any] = (
        {"fps": fps, "macro_block_size": 2} if path.suffix == ".mp4" else {"duration": 1000 / fps, "loop": 0}
    )
    with imageio.get_writer(path, **options) as writer:
        for t, frame in enumerate(frames):
            so_far = np.asarray(rewards[: t + 1], dtype=np.float64)[:, None]
            plot = draw_curves(frame.shape[1], so_far, low, high, len(frames), [title])
            writer.append_data(np.concatenate([frame, plot]))  # pyright: ignore[reportAttributeAccessIssue]


def draw_curves(
    width: int, rewards: NDArray[np.floating[Any]], low: float, high: float, steps: int, titles: Sequence[str]
) -> NDArray[np.uint8]:
    """Draw rewards so far as curves of different colours, below a line of text for each.

    Args:
        width: Of the picture, in pixels.
        rewards: (T, C), T at least 1.
        low: Reward at the bottom.
        high: Reward at the top.
        steps: Number of rewards that fill the width.
        titles: Texts of the C curves; what is too long is cut off.

    Returns:
        uint8 (PLOT_HEIGHT + LINE_HEIGHT (C - 1), width, 3).
    """
    from PIL import Image, ImageDraw

    top = LINE_HEIGHT * (len(titles) - 1)
    image = Image.new("RGB", (width, PLOT_HEIGHT + top), (24, 26, 32))
    draw = ImageDraw.Draw(image)
    x = 8 + (width - 16) * np.arange(len(rewards)) / max(steps - 1, 1)
    for i, (title, values) in enumerate(zip(titles, rewards.T, strict=True)):
        color = COLORS[i % len(COLORS)]
        label, title = f"reward {values[-1]:+.3f}", " ".join(title.split())
        while title and draw.textlength(title) > width - 32 - draw.textlength(label):
            title = title[:-1]
        draw.text((8, 6 + LINE_HEIGHT * i), title, fill=(236, 236, 236))
        draw.text((width - 8 - draw.textlength(label), 6 + LINE_HEIGHT * i), label, fill=color)
        y = PLOT_HEIGHT + top - 8 - (PLOT_HEIGHT - 34) * (values - low) / max(high - low, 1e-6)
        if len(values) > 1:
            draw.line(list(zip(x.tolist(), y.tolist(), strict=True)), fill=color, width=2)
        draw.ellipse((x[-1] - 3, y[-1] - 3, x[-1] + 3, y[-1] + 3), fill=(255, 255, 255))
    return np.asarray(image)
