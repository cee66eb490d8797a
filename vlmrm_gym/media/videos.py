"""Videos with a strip below the frames, such as a plot of the reward (needs the extra "train").

The videos say in their metadata what is frame and what is strip: see `Layout`.
"""

import errno
import json
import re
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.capture import StateView
from vlmrm_gym.media.drawing import draw_curves, draw_text, drawn_size
from vlmrm_gym.rendering.states import States
from vlmrm_gym.untrusted import FFMPEG_LIMITS

WINDOW = 300
"""The most frames whose rewards the curves of a `RewardVideo` show, up to the current one."""
_CHUNK = 32
"""Frames that are drawn from states at once."""
_COMMENT = re.compile(r'\{"vlmrm_gym": \{"video_size": \[(\d+), (\d+)\], "frame_size": \[(\d+), (\d+)\]\}\}', re.ASCII)
"""What `Layout.comment` is."""


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
        found = _COMMENT.fullmatch(comment)
        if found is None:
            return None
        video_width, video_height, width, height = map(int, found.groups())
        is_part = 0 < width <= video_width and 0 < height <= video_height
        return cls((video_width, video_height), (width, height)) if is_part else None


def read_layout(path: str | Path) -> Layout | None:
    """The layout that a video's metadata have; None if they have none, or the file cannot be read."""
    import imageio_ffmpeg

    file = str(Path(path).resolve())
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *FFMPEG_LIMITS, "-i", file, "-f", "ffmetadata", "-"]
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


class RewardVideo:
    """Draws frames above the curves of their rewards, as they come.

    The first frame sets the size; others are scaled to it and padded. The curves show the last rewards, `WINDOW`
    at most, scaled to the range of all so far.

    Args:
        path: The file, ending in ".mp4".
        labels: Names of the C columns.
        fps: Frames per second.
        count: Expected number of frames; None if unknown.
    """

    def __init__(self, path: Path, labels: Sequence[str], fps: float, count: int | None) -> None:
        self._video, self._labels, self._steps = StripVideo(path, fps), labels, min(count or WINDOW, WINDOW)
        self._window: deque[NDArray[np.floating[Any]]] = deque(maxlen=self._steps)
        self._low, self._high = np.inf, -np.inf
        self._size: tuple[int, int] | None = None

    def add(self, frame: NDArray[np.uint8], rewards: NDArray[np.floating[Any]]) -> None:
        """Append a frame, uint8 (H, W, 3), and its rewards, (C,)."""
        from PIL import Image, ImageOps

        self._size = self._size or drawn_size(*frame.shape[:2])
        self._window.append(rewards)
        self._low, self._high = min(self._low, rewards.min()), max(self._high, rewards.max())
        picture = np.asarray(ImageOps.pad(Image.fromarray(frame), self._size))
        window = np.stack(self._window)
        curves = draw_curves(self._size[0], window, self._low, self._high, self._steps, self._labels)
        self._video.add(picture, curves)

    def close(self) -> None:
        """Finish the file, see `StripVideo.close`: it can be played, also after an interruption."""
        self._video.close()


def save_numbered_video(view: StateView, states: States, episode: int, fps: float, path: Path) -> None:
    """Write states as a video: frame `k` is state `k`, above the words "step k". Small frames are enlarged.

    Args:
        view: Draws the states; several views are side by side.
        states: At least one.
        episode: Number of the episode, which each frame shows too.
        fps: Frames per second.
        path: The file, ending in ".mp4".

    Raises:
        OSError: The file could not be written.
    """
    from PIL import Image, ImageOps

    with closing(StripVideo(path, fps, quality=8)) as video:
        for start in range(0, len(states), _CHUNK):
            part = states[start : start + _CHUNK]
            for step, frame in enumerate(view.draw(part.rows, part.changes), start):
                size = drawn_size(*frame.shape[:2])
                picture = np.asarray(ImageOps.pad(Image.fromarray(frame), size))
                video.add(picture, draw_text(size[0], f"episode {episode}, step {step}"))
