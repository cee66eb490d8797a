"""Videos with a strip below the frames, such as a plot of the reward (needs the extra "train").

The videos say in their metadata what is frame and what is strip: see `Layout`.
"""

import errno
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import printable
from vlmrm_gym.states import StateView
from vlmrm_gym.states.states import States

PLOT_HEIGHT = 72
"""Height of the reward plot under the frames, in pixels."""
LINE_HEIGHT = 16
"""Height added per extra curve, in pixels."""
COLORS = ((255, 196, 84), (96, 178, 255), (126, 217, 87), (255, 128, 171), (186, 146, 255), (77, 208, 195))
"""Of the curves, in order."""
STRIP = 20
"""Height of a line of text below the frames, in pixels."""
MIN_WIDTH, MAX_SIDE = 320, 1280
"""Limits of the drawn frames in pixels: smaller and larger ones are scaled. Curves below need some width."""
_BACKGROUND, _TEXT = (24, 26, 32), (236, 236, 236)
WINDOW = 300
"""The most rewards that the curves of `draw_rewards` show, up to the current one."""
_CHUNK = 32
"""Frames that are drawn from states at once."""
Frame = NDArray[np.uint8]
"""RGB, uint8 (H, W, 3)."""
Floats = NDArray[np.floating[Any]]
Strips = Iterator[tuple[Frame, Frame]]
"""Frames, uint8 (H, W, 3), and what is below each, uint8 (S, W, 3). All have the sizes of the first."""


class Layout(NamedTuple):
    """Says which part of a video is strip: what a comment in the video's metadata has, as `comment` writes it."""

    video_size: tuple[int, int]
    """Width and height of the video, in pixels."""
    frame_size: tuple[int, int]
    """Width and height of the frames of the environment, at the top left; the rest is strip."""

    @property
    def comment(self) -> str:
        """The comment of a video's metadata."""
        return json.dumps({"vlmrm_gym": self._asdict()})


def write_video(path: str | Path, fps: float, strips: Strips, quality: int = 5) -> None:
    """Write frames above strips as an MP4 or a GIF, by the suffix. If `strips` raises, those before it can be played.

    `quality`, of an MP4, is from 1 to 10. An MP4 that could not be written is removed: an OSError.
    """
    import imageio.v2 as imageio

    path, count = Path(path), 0
    writer: Any = None
    is_gif = path.suffix == ".gif"
    if not is_gif and path.suffix != ".mp4":
        raise ValueError(f"`path` must end in .mp4 or .gif. Received {str(path)!r}.")
    try:
        for frame, strip in strips:
            picture = np.concatenate([frame, strip])
            if not is_gif:  # the sides of an MP4 are even: imageio would scale it
                picture = np.pad(picture, ((0, len(picture) % 2), (0, picture.shape[1] % 2), (0, 0)), "edge")
            if writer is None:
                comment = Layout(picture.shape[1::-1], frame.shape[1::-1]).comment
                mp4: dict[str, Any] = {"fps": fps, "quality": quality, "macro_block_size": 2}
                mp4["output_params"] = ["-metadata", f"comment={comment}"]
                gif = {"duration": 1000 / fps, "loop": 0, "comment": comment}
                writer = imageio.get_writer(path, **(gif if is_gif else mp4))
            writer.append_data(picture)
            count += 1
    finally:
        if writer is not None:
            writer.close()
            # imageio does not raise what ffmpeg prints, as on a full disk, but at most that its pipe is broken.
            if not is_gif and _count_frames(path) != count:
                path.unlink(missing_ok=True)
                raise OSError(errno.EIO, "ffmpeg could not write the video, see its message above", str(path))


def _count_frames(path: Path) -> int | None:
    """Number of frames of a video; 0 if it cannot be read."""
    import imageio_ffmpeg

    try:
        return imageio_ffmpeg.count_frames_and_secs(str(path.resolve()))[0]
    except (OSError, RuntimeError):
        return 0


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


def save_video(path: str | Path, frames: Sequence[Frame], rewards: Sequence[float], *, title: str = "") -> None:
    """Write an episode as a video: each frame, uint8 (H, W, 3), and below it a plot of the rewards so far."""
    if not len(frames) == len(rewards) > 0:
        raise ValueError(
            "`frames` and `rewards` must have the same length, with at least one frame. "
            f"Received {len(frames)} and {len(rewards)}."
        )
    column = np.asarray(rewards, dtype=np.float64)[:, None]
    low, high = column.min(), column.max()
    strips = (
        (frame, draw_curves(frame.shape[1], column[:t], low, high, len(frames), [title]))
        for t, frame in enumerate(frames, 1)
    )
    write_video(path, 30, strips)


def draw_rewards(scored: Iterable[tuple[Frame, Floats]], labels: Sequence[str], count: int) -> Strips:
    """Draw `count` frames above the curves of their C rewards, as they come: for `write_video`.

    The first frame sets the size; others are scaled to it and padded. The curves show the last rewards, `WINDOW` at
    most, scaled to the range of all so far.
    """
    window, low, high, size = deque[Floats](maxlen=min(count, WINDOW)), np.inf, -np.inf, None
    for frame, rewards in scored:
        size = size or drawn_size(*frame.shape[:2])
        window.append(rewards)
        low, high = min(low, rewards.min()), max(high, rewards.max())
        yield fit_frame(frame, size), draw_curves(size[0], np.stack(window), low, high, min(count, WINDOW), labels)


def save_numbered_video(view: StateView, states: States, episode: int, fps: float, path: Path) -> None:
    """Write states as an MP4: frame `k` is state `k`, above the words "step k". Small frames are enlarged."""
    from PIL import Image, ImageDraw

    def draw() -> Strips:
        for start in range(0, len(states), _CHUNK):
            part = states[start : start + _CHUNK]
            for step, frame in enumerate(view.draw(part.rows, part.changes), start):
                size = drawn_size(*frame.shape[:2])
                strip = Image.new("RGB", (size[0], STRIP), _BACKGROUND)
                ImageDraw.Draw(strip).text((6, 4), f"episode {episode}, step {step}", fill=_TEXT)
                yield fit_frame(frame, size), np.asarray(strip)

    write_video(path, fps, draw(), quality=8)


def draw_curves(width: int, rewards: Floats, low: float, high: float, steps: int, titles: Sequence[str]) -> Frame:
    """Draw rewards so far, (T, C), as curves of different colours below a line of text for each.

    `low` is the reward at the bottom, `high` that at the top; `steps` rewards fill the width. The picture is uint8
    (PLOT_HEIGHT + LINE_HEIGHT (C - 1), width, 3).
    """
    from PIL import Image, ImageDraw

    top = LINE_HEIGHT * (len(titles) - 1)
    image = Image.new("RGB", (width, PLOT_HEIGHT + top), _BACKGROUND)
    draw = ImageDraw.Draw(image)
    x = 8 + (width - 16) * np.arange(len(rewards)) / max(steps - 1, 1)
    for i, (title, values) in enumerate(zip(titles, rewards.T, strict=True)):
        color = COLORS[i % len(COLORS)]
        label, title = f"reward {values[-1]:+.3f}", " ".join(title.split())
        while title and draw.textlength(title) > width - 32 - draw.textlength(label):
            title = title[:-1]
        draw.text((8, 6 + LINE_HEIGHT * i), title, fill=_TEXT)
        draw.text((width - 8 - draw.textlength(label), 6 + LINE_HEIGHT * i), label, fill=color)
        y = PLOT_HEIGHT + top - 8 - (PLOT_HEIGHT - 34) * (values - low) / max(high - low, 1e-6)
        if len(values) > 1:
            draw.line(list(zip(x.tolist(), y.tolist(), strict=True)), fill=color, width=2)
        draw.circle((x[-1], y[-1]), 3, fill=(255, 255, 255))
    return np.asarray(image)


def drawn_size(height: int, width: int) -> tuple[int, int]:
    """Width and height, even, at which frames of a size are drawn."""
    scale = min(max(1, MIN_WIDTH / width), MAX_SIDE / max(height, width))
    return max(MIN_WIDTH, round(width * scale / 2) * 2), max(2, round(height * scale / 2) * 2)


def fit_frame(frame: Frame, size: tuple[int, int]) -> Frame:
    """Scale and pad a frame, uint8 (H, W, 3), to a width and height."""
    from PIL import Image, ImageOps

    return np.asarray(ImageOps.pad(Image.fromarray(frame), size))


def plot_rewards(
    path: Path | IO[bytes], labels: Sequence[str], rewards: Sequence[Floats], seconds: Sequence[float | None] = (None,)
) -> None:
    """Draw the rewards of videos, (T, C) each, into a PNG file: a colour for each column, a line for each video.

    One video is drawn over its `seconds`, or over frame numbers if one is None; several are scaled to the same length.
    """
    from matplotlib.figure import Figure

    several, has_times = len(rewards) > 1, None not in seconds
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    axis = figure.subplots()
    axis.set(xlabel="time in the video" if several else "seconds" if has_times else "frame", ylabel="reward")
    axis.margins(x=0.01)
    axis.grid(alpha=0.3)
    for one in rewards:
        axis.set_prop_cycle(None)  # the first colours again
        times: Any = np.linspace(0, 1, len(one)) if several else seconds if has_times else range(len(one))
        axis.plot(times, one, marker="." if len(one) < 100 else "", linewidth=1, alpha=0.7 if several else 1)
    names = [f'"{printable(label)}"' for label in labels]  # a legend leaves out those that begin with an underscore
    lines = axis.get_lines()[: len(labels)]
    for text in figure.legend(lines, names, loc="outside lower left", frameon=False).get_texts():
        text.set_parse_math(False)
    figure.savefig(path, dpi=120)
