"""Recordings of a task being done: videos, folders of pictures, Minari datasets with frames, arrays."""

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.untrusted import reading
from vlmrm_gym.data.frames import Pictures, TimedFrame, Video, is_picture, open_frames
from vlmrm_gym.data.minari import MinariData, find_data

SUFFIXES = (".mp4", ".gif", ".webm", ".mov", ".mkv", ".avi", ".m4v", ".mpg", ".mpeg")
"""Suffixes of the videos in a folder."""
MAX_FRAMES = 1_000
"""Of a recording. Of a longer one as many are taken, at equal distances."""
_CHUNK = 32
"""Frames that are drawn at once."""


@dataclass(frozen=True)
class Frames:
    """Frames of one size that are in memory, or are drawn as they are needed."""

    count: int
    draw: Callable[[slice], NDArray[np.uint8]]
    """From successive frames, to RGB, uint8 (B, H, W, 3)."""
    note: str | None = None
    fps: None = None

    def frames(self) -> Generator[TimedFrame]:
        """Draw them, some at a time."""
        for start in range(0, self.count, _CHUNK):
            part = slice(start, min(start + _CHUNK, self.count))
            yield from (TimedFrame(frame, None) for frame in self.draw(part))


Source = Video | Pictures | Frames


@dataclass(frozen=True)
class Recording:
    """A recording of a task being done, from its beginning to its end."""

    name: str
    """For messages."""
    source: Source

    @property
    def taken(self) -> NDArray[np.int64]:
        """The numbers of the T frames that are taken, int64 (T,)."""
        count = self.source.count
        return np.linspace(0, count - 1, min(count, MAX_FRAMES)).round().astype(np.int64)

    @property
    def places(self) -> NDArray[np.float64]:
        """Where the frames, two at least, are in time, float64 (T,), from 0 to 1: by their times, or their numbers."""
        source, places = self.source, np.arange(self.source.count)
        if isinstance(source, Video) and (np.diff(source.times) > 0).all():
            places = source.times
        places = places[self.taken]
        return (places - places[0]) / (places[-1] - places[0])

    def frames(self) -> Generator[TimedFrame]:
        """Decode the frames that are taken. An InputError names the file of one that is damaged."""
        taken = set(self.taken.tolist())
        with closing(self.source.frames()) as frames:
            yield from (frame for number, frame in enumerate(frames) if number in taken)


def of_array(frames: Any, name: str) -> Recording:
    """Make the recording of frames in memory, uint8 (T, H, W, 3); a TypeError for anything else."""
    array = np.asarray(frames)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3:
        rule = f"`videos`: {name} must be a file, a folder, or frames, uint8 (T, H, W, 3)"
        raise TypeError(f"{rule}. Received {array.dtype} of shape {array.shape}.")
    return Recording(name, Frames(len(array), lambda part: array[part]))


def find_recordings(path: Path, fps: float | None = None) -> tuple[list[Recording], list[str]]:
    """Find the recordings in a video, a folder of pictures, a Minari dataset, or a folder of any of these.

    `fps` is of pictures.

    Returns the recordings, in the order of their names, and the names of what is in the folder and is none. An
    InputError names a file that cannot be read; or there is no recording.
    """
    if not path.is_dir():
        return [Recording(str(path), open_frames(path, fps))], []
    if (data := find_data(path)) is not None:
        source = MinariData(data)
        return [of_array(source.frames(i), f"{data}, episode {i}") for i in range(source.count)], []
    found, skipped = [], []
    with reading(path):
        inside = sorted(path.iterdir())
    if any(is_picture(one) for one in inside):
        found.append(Recording(str(path), open_frames(path, fps)))
        inside = [one for one in inside if not is_picture(one)]
    for one in inside:
        if one.name.startswith("."):
            continue
        is_video = one.suffix.lower() in SUFFIXES and one.is_file()
        is_folder = one.is_dir() and (find_data(one) is not None or any(map(is_picture, one.iterdir())))
        if is_video or is_folder:
            found += find_recordings(one, None if is_video else fps)[0]
        else:
            skipped.append(one.name)
    if not found:
        raise InputError(f"{path} must have videos ({' '.join(SUFFIXES)}), or folders of pictures. Received none.")
    return found, skipped
