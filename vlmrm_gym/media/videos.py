"""Videos with a strip below the frames, such as a plot of the reward (needs the extra "train").

The videos say in their metadata what is frame and what is strip: see `Layout`.
"""

import errno
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.media.drawing import draw_curves, draw_text, drawn_size, fit_frame
from vlmrm_gym.states import StateView
from vlmrm_gym.states.states import States

WINDOW = 300
"""The most rewards that the curves of `draw_rewards` show, up to the current one."""
_CHUNK = 32
"""Frames that are drawn from states at once."""
Strips = Iterable[tuple[NDArray[np.uint8], NDArray[np.uint8]]]
"""Frames, uint8 (H, W, 3), and what is below each, uint8 (S, W, 3). All have the sizes of the first."""


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


def write_video(path: str | Path, fps: float, strips: Strips, quality: int = 5) -> None:
    """Write frames above strips as an MP4 or a GIF, by the suffix. If `strips` raises, those before it can be played.

    `quality`, of an MP4, is from 1 to 10. An MP4 that could not be written is removed: an OSError.
    """
    import imageio.v2 as imageio

    path, writer, count = Path(path), None, 0
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
            writer.append_data(picture)  # pyright: ignore[reportAttributeAccessIssue]
            count += 1
    finally:
        if writer is not None:
            writer.close()
        # imageio does not raise what ffmpeg prints, as on a full disk, but at most that its pipe is broken.
        if writer is not None and not is_gif and _count_frames(path) != count:
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
    column = np.asarray(rewards, dtype=np.float64)[:, None]
    low, high = column.min(), column.max()
    strips = (
        (frame, draw_curves(frame.shape[1], column[:t], low, high, len(frames), [title]))
        for t, frame in enumerate(frames, 1)
    )
    write_video(path, fps, strips)


def draw_rewards(
    scored: Iterable[tuple[NDArray[np.uint8], NDArray[np.floating[Any]]]], labels: Sequence[str], count: int
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Draw `count` frames above the curves of their C rewards, as they come: for `write_video`.

    The first frame sets the size; others are scaled to it and padded. The curves show the last rewards, `WINDOW` at
    most, scaled to the range of all so far.
    """
    window, low, high, size = deque[NDArray[np.floating[Any]]](maxlen=min(count, WINDOW)), np.inf, -np.inf, None
    for frame, rewards in scored:
        size = size or drawn_size(*frame.shape[:2])
        window.append(rewards)
        low, high = min(low, rewards.min()), max(high, rewards.max())
        yield fit_frame(frame, size), draw_curves(size[0], np.stack(window), low, high, min(count, WINDOW), labels)


def save_numbered_video(view: StateView, states: States, episode: int, fps: float, path: Path) -> None:
    """Write states as an MP4: frame `k` is state `k`, above the words "step k". Small frames are enlarged."""

    def draw() -> Strips:
        for start in range(0, len(states), _CHUNK):
            part = states[start : start + _CHUNK]
            for step, frame in enumerate(view.draw(part.rows, part.changes), start):
                size = drawn_size(*frame.shape[:2])
                yield fit_frame(frame, size), draw_text(size[0], f"episode {episode}, step {step}")

    write_video(path, fps, draw(), quality=8)
