"""Frames of a video or of pictures, one after the other: neither is ever wholly in memory."""

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.errors import InputError
from vlmrm_gym.media.videos import Layout, read_layout
from vlmrm_gym.validation import truncate

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
"""Suffixes of pictures."""

Frame = NDArray[np.uint8]
"""RGB, uint8 (H, W, 3)."""


@dataclass(frozen=True)
class Video:
    """A video file that ffmpeg can decode.

    Attributes:
        path: The file.
        fps: Frames per second, if known.
        count: Number of frames as the header has it, which may be off by a few; None if it has none.
        size: Width and height of its pictures.
        layout: What the metadata of a video of this package say of its strip; None without it.
    """

    path: Path
    fps: float | None
    count: int | None
    size: tuple[int, int]
    layout: Layout | None

    @property
    def frame_size(self) -> tuple[int, int]:
        """Width and height of the frames without the strip: the whole picture, if the video was cut or scaled."""
        return self.layout.frame_size if self.layout and self.layout.video_size == self.size else self.size

    @property
    def note(self) -> str | None:
        """A sentence on the strip below the frames, if the video has, or had, one."""
        if self.layout is None:
            return None
        if self.layout.video_size == self.size:
            return (
                f"{self.path}: the strip below the frames is left out. Frames of {_times(*self.frame_size)} are scored."
            )
        return (
            f"{self.path} had a strip below its frames, and its size has changed since, from "
            f"{_times(*self.layout.video_size)} to {_times(*self.size)}. Whole pictures are scored. Score the original."
        )

    @classmethod
    def open(cls, path: Path) -> "Video":
        """Read the header.

        Raises:
            InputError: It cannot be read as a video.
        """
        import imageio_ffmpeg

        try:
            with closing(imageio_ffmpeg.read_frames(str(path.resolve()))) as reader:
                header = next(reader)
            width, height = header["size"]
            fps, seconds = float(header["fps"]), float(header["duration"])
        except (OSError, RuntimeError, ValueError, KeyError, IndexError, StopIteration) as error:
            raise _unreadable(path, error) from error
        if not width * height:
            raise InputError(f"{path} has no pictures in it. Pass a video, or a folder of pictures.")
        return cls(path, fps or None, round(fps * seconds) or None, (width, height), read_layout(path))

    def frames(self) -> Iterator[Frame]:
        """Decode it; see `frame_size`.

        Raises:
            InputError: It is damaged.
        """
        import imageio_ffmpeg

        frame_width, frame_height = self.frame_size
        with closing(imageio_ffmpeg.read_frames(str(self.path.resolve()))) as reader:
            try:
                width, height = next(reader)["size"]
                for data in reader:
                    yield np.frombuffer(data, np.uint8).reshape(height, width, 3)[:frame_height, :frame_width]
            except (OSError, RuntimeError) as error:
                raise _unreadable(self.path, error) from error


@dataclass(frozen=True)
class Pictures:
    """Pictures, each of a size of its own.

    Attributes:
        paths: The files.
        fps: Frames per second, if known.
        note: There is nothing to say, other than of a video.
    """

    paths: Sequence[Path]
    fps: float | None
    note: ClassVar[str | None] = None

    @property
    def count(self) -> int:
        """Number of pictures."""
        return len(self.paths)

    def frames(self) -> Iterator[Frame]:
        """Decode them, turned as their cameras say, without transparency.

        Raises:
            InputError: One is damaged, or has more than 8 bits per channel.
        """
        from PIL import Image, ImageOps

        for path in self.paths:
            try:
                with Image.open(path) as image:
                    mode, frame = image.mode, np.array(ImageOps.exif_transpose(image).convert("RGB"))
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                raise _unreadable(path, error) from error
            if mode in ("I", "F") or mode.startswith("I;"):
                raise InputError(f"{path} must have 8 bits per channel. Received Pillow's mode {mode!r}. Convert it.")
            yield frame


def open_frames(path: Path, fps: float | None = None) -> Video | Pictures:
    """Open a video, a folder of pictures, or one picture.

    Args:
        path: The file or folder.
        fps: Frames per second of pictures, if known.

    Raises:
        InputError: It does not exist, cannot be read, or has no pictures; or `fps` is given for a video.
    """
    try:
        if path.is_dir():
            paths = [file for file in path.iterdir() if _is_picture(file)]
            if not paths:
                raise InputError(f"The folder {path} must have pictures ({' '.join(PICTURES)}). Received none.")
            return _begun(Pictures(sorted(paths, key=_natural), fps))
        if not path.is_file():
            raise InputError(f"There is no file or folder {path}. Pass a video, or a folder of pictures.")
    except OSError as error:
        raise _unreadable(path, error) from error
    if _is_picture(path):
        return _begun(Pictures([path], fps))
    if fps is not None:
        raise InputError(
            f"`fps` is for pictures. Received {fps:g} for the video {path}, which has its own. Leave it out."
        )
    return Video.open(path)


def _begun(pictures: Pictures) -> Pictures:
    """The pictures, of which the first can be decoded. If it cannot, that is said before a model is loaded."""
    next(pictures.frames())
    return pictures


def batch(frames: Iterator[Frame], size: int, max_bytes: int = 2**28) -> Generator[NDArray[np.uint8]]:
    """Stack neighbouring frames of one size: uint8 (B, H, W, 3), B from 1 to `size`, at most `max_bytes` or one frame.

    Args:
        frames: The frames.
        size: The most frames of a batch.
        max_bytes: The most bytes of a batch of two or more.

    Raises:
        InputError: A frame is damaged; those before it have been yielded.
    """
    stack: list[Frame] = []
    try:
        for frame in frames:
            if stack and (stack[0].shape != frame.shape or (len(stack) + 1) * frame.nbytes > max_bytes):
                yield np.stack(stack)
                stack = []
            stack.append(frame)
            if len(stack) == size:
                yield np.stack(stack)
                stack = []
    except InputError:
        if stack:
            yield np.stack(stack)
        raise
    if stack:
        yield np.stack(stack)


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES and not path.name.startswith(".") and path.is_file()


def _times(width: int, height: int) -> str:
    return f"{width} x {height}"


def _natural(path: Path) -> tuple[list[str | int], str]:
    """A sorting key by which numbers in names count as numbers; texts and numbers alternate."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", path.name))], path.name


def _unreadable(path: Path, error: Exception) -> InputError:
    """The last line of a reader's message is its reason."""
    reason = next(iter(reversed(str(error).strip().splitlines())), type(error).__name__)
    return InputError(f"{path} cannot be read: {truncate(reason)}")
