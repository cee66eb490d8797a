"""Videos of agents with the reward drawn in (needs the extra "train")."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

STRIP = 72
"""Height of the strip under the frames in which the reward is drawn, in pixels."""


def save_video(
    path: str | Path,
    frames: Sequence[NDArray[np.uint8]],
    rewards: Sequence[float],
    *,
    title: str = "",
    fps: int = 30,
) -> None:
    """Write an episode as a video: each frame above the curve of the rewards up to it.

    Args:
        path: The file; ".mp4" or ".gif".
        frames: uint8 (H, W, 3) each: the frames that were scored.
        rewards: Their rewards, as many as frames.
        title: Is written above the curve; the prompt, say.
        fps: Frames a second.

    Raises:
        ValueError: No frames, another number of rewards than of frames, or an unknown file type.
    """
    import imageio.v2 as imageio

    path = Path(path)
    if path.suffix not in (".mp4", ".gif"):
        raise ValueError(f"`path` must end in .mp4 or .gif. Received {str(path)!r}.")
    if not len(frames) == len(rewards) > 0:
        raise ValueError(
            f"`frames` and `rewards` must be equally many, and at least one. Received {len(frames)} and {len(rewards)}."
        )
    low, high = min(rewards), max(rewards)
    options: dict[str, Any] = (
        {"fps": fps, "macro_block_size": 2} if path.suffix == ".mp4" else {"duration": 1000 / fps, "loop": 0}
    )
    with imageio.get_writer(path, **options) as writer:
        for t, frame in enumerate(frames):
            strip = _draw_strip(frame.shape[1], np.asarray(rewards[: t + 1]), low, high, len(frames), title)
            writer.append_data(np.concatenate([frame, strip]))  # pyright: ignore[reportAttributeAccessIssue]


def _draw_strip(
    width: int, rewards: NDArray[np.float64], low: float, high: float, steps: int, title: str
) -> NDArray[np.uint8]:
    """The reward's curve so far, uint8 (STRIP, width, 3)."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (width, STRIP), (24, 26, 32))
    draw = ImageDraw.Draw(image)
    label = f"reward {rewards[-1]:+.3f}"
    while title and draw.textlength(title) > width - 32 - draw.textlength(label):
        title = title[:-1]
    draw.text((8, 6), title, fill=(236, 236, 236))
    draw.text((width - 8 - draw.textlength(label), 6), label, fill=(255, 196, 84))
    x = 8 + (width - 16) * np.arange(len(rewards)) / max(steps - 1, 1)
    y = STRIP - 8 - (STRIP - 34) * (rewards - low) / max(high - low, 1e-6)
    if len(rewards) > 1:
        draw.line(list(zip(x.tolist(), y.tolist(), strict=True)), fill=(255, 196, 84), width=2)
    draw.ellipse((x[-1] - 3, y[-1] - 3, x[-1] + 3, y[-1] + 3), fill=(255, 255, 255))
    return np.asarray(image)
