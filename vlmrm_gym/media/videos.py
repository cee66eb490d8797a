"""Videos with a strip below the frames, such as a plot of the reward (needs the extra "train").

The videos say in their metadata what is frame and what is strip: see `Layout`.
"""

import errno
import json
import subprocess
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

PLOT_HEIGHT = 72
"""Height of the reward plot under the frames, in pixels."""
LINE_HEIGHT = 16
"""By which each further curve makes the plot higher, in pixels."""
COLORS = ((255, 196, 84), (96, 178, 255), (126, 217, 87), (255, 128, 171), (186, 146, 255), (77, 208, 195))
"""Of the curves, in order."""


_MAX_COMMENT = 300
"""The longest comment that is read as a layout, in characters."""


class Layout(NamedTuple):
    """Which part of a video is strip: a comment in the video's metadata.

    For example `{"vlmrm_gym": {"video_size": [600, 472], "frame_size": [600, 400]}}`.
    """

    video_size: tuple[int, int]
    """Width and height of the video, in pixels."""
    frame_size: tuple[int, int]
    """Width and height of the frames of the environment, at the top left; the rest is strip."""

    @property
    def comment(self) -> str:
        """The comment of a video's metadata."""
        return json.dumps({"vlmrm_gym": self._asdict()})

    @classmethod
    def from_comment(cls, comment: str) -> "Layout | None":
        """Read a comment; None if it is not a layout."""
        try:
            sizes = json.loads(comment)["vlmrm_gym"] if len(comment) <= _MAX_COMMENT else {}
            layout = cls(*(tuple(sizes[name]) for name in cls._fields))
        except (ValueError, TypeError, KeyError):
            return None
        if not all(len(size) == 2 and all(type(side) is int for side in size) for size in layout):
            return None
        is_part = all(0 < part <= whole for part, whole in zip(layout.frame_size, layout.video_size, strict=True))
        return layout if is_part else None


def read_layout(path: str | Path) -> Layout | None:
    """The layout that a video's metadata have; None if they have none, or the file cannot be read."""
    import imageio_ffmpeg

    file = str(Path(path).resolve())
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", file, "-f", "ffmetadata", "-"]
    read = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    for line in read.stdout.decode(errors="replace").splitlines():
        if line.startswith("comment="):
            return Layout.from_comment(line.removeprefix("comment="))
    return None


class StripVideo:
    """Writes frames, each above a strip, as a video that says which part is strip.

    Close it, also after an exception: then it can be played.

    Args:
        path: The file, ending in ".mp4" or ".gif".
        fps: Frames per second.
        quality: Of an MP4, from 1 to 10.

    Raises:
        ValueError: Unknown file type.
    """

    def __init__(self, path: str | Path, fps: float, quality: int = 5) -> None:
        self._path, self._fps, self._quality = Path(path), fps, quality
        if self._path.suffix not in (".mp4", ".gif"):
            raise ValueError(f"`path` must end in .mp4 or .gif. Received {str(path)!r}.")
        self._writer: Any = None
        self._count = 0
        """Number of frames."""

    def add(self, frame: NDArray[np.uint8], strip: NDArray[np.uint8]) -> None:
        """Append a frame, uint8 (H, W, 3), and its strip, uint8 (S, W, 3). All have the sizes of the first.

        Raises:
            OSError: The file could not be written.
        """
        picture = np.concatenate([frame, strip])
        if self._path.suffix == ".mp4":
            picture = _pad_to_even(picture)
        if self._writer is None:
            self._writer = self._open(Layout(_size(picture), _size(frame)))
        self._writer.append_data(picture)
        self._count += 1

    def _open(self, layout: Layout) -> Any:
        import imageio.v2 as imageio

        if self._path.suffix == ".gif":
            return imageio.get_writer(self._path, duration=1000 / self._fps, loop=0, comment=layout.comment)
        metadata = ["-metadata", f"comment={layout.comment}"]
        return imageio.get_writer(
            self._path, fps=self._fps, quality=self._quality, macro_block_size=2, output_params=metadata
        )

    def close(self) -> None:
        """Finish the file. Without frames there is none.

        Raises:
            OSError: The file could not be written, and was removed.
        """
        if self._writer is None:
            return
        self._writer.close()
        if self._path.suffix == ".mp4" and _count_frames(self._path) != self._count:
            self._path.unlink(missing_ok=True)  # imageio does not raise what ffmpeg prints, as on a full disk
            raise OSError(errno.EIO, "ffmpeg could not write the video, see its message above", str(self._path))


def _count_frames(path: Path) -> int | None:
    """Number of frames of a video; 0 if it cannot be read."""
    import imageio_ffmpeg

    try:
        return imageio_ffmpeg.count_frames_and_secs(str(path.resolve()))[0]
    except (OSError, RuntimeError):
        return 0


def _pad_to_even(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Repeat the last row and column where their number is odd: the sides of an MP4 are even."""
    height, width = picture.shape[:2]
    return np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), "edge")


def _size(picture: NDArray[np.uint8]) -> tuple[int, int]:
    height, width = picture.shape[:2]
    return width, height


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
    if not len(frames) == len(rewards) > 0:
        raise ValueError(
            "`frames` and `rewards` must have the same length, with at least one frame. "
            f"Received {len(frames)} and {len(rewards)}."
        )
    low, high = min(rewards), max(rewards)
    with closing(StripVideo(path, fps)) as video:
        for t, frame in enumerate(frames):
            so_far = np.asarray(rewards[: t + 1], dtype=np.float64)[:, None]
            video.add(frame, draw_curves(frame.shape[1], so_far, low, high, len(frames), [title]))


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
