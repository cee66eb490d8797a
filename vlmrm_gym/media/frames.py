"""Frames of a video or of pictures, one after the other: neither is ever wholly in memory."""

import re
import subprocess
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.errors import InputError
from vlmrm_gym.media.videos import Layout, read_layout
from vlmrm_gym.threads import start
from vlmrm_gym.untrusted import FFMPEG_LIMITS, MAX_PIXELS, check_file, open_file, reading
from vlmrm_gym.validation import truncate

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
"""Suffixes of pictures."""

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
"""Formats of pictures, whatever their suffix: Pillow knows others that start programs."""
_TIME_BASE = re.compile(r"\[Parsed_showinfo\S* @ \w+\] config in time_base: (\d+)/(\d+)", re.ASCII)
_PATIENCE = 30.0
"""Seconds after a picture, within which ffmpeg says its time."""
_TIME = re.compile(r"\[Parsed_showinfo\S* @ \w+\] n: *\d+ pts: *(-?\d+|NOPTS) ", re.ASCII)


class TimedFrame(NamedTuple):
    """A frame of a video, or a picture."""

    frame: NDArray[np.uint8]
    """RGB, uint8 (H, W, 3)."""
    seconds: float | None
    """When it is shown; None if that is not known."""


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
            InputError: It cannot be read as a video, or has too many pixels.
        """
        import imageio_ffmpeg

        check_file(path)
        with reading(path, RuntimeError, LookupError, StopIteration):
            with closing(imageio_ffmpeg.read_frames(str(path.resolve()), input_params=[*FFMPEG_LIMITS])) as reader:
                try:
                    header = next(reader)
                except OSError as error:  # ffmpeg's log
                    for size in re.finditer(r"Picture size (\d+)x(\d+) exceeds", str(error)):
                        _check_pixels(path, int(size[1]), int(size[2]))
                    raise
            width, height = header["size"]
            fps, seconds = float(header["fps"]), float(header["duration"])
        if not width * height:
            raise InputError(f"{path} has no pictures in it. Pass a video, or a folder of pictures.")
        return cls(path, fps or None, round(fps * seconds) or None, (width, height), read_layout(path))

    def frames(self) -> Iterator[TimedFrame]:
        """Decode it: each picture once, at its own time; see `frame_size`.

        Raises:
            InputError: It is damaged.
        """
        import imageio_ffmpeg

        width, height = self.size
        frame_width, frame_height = self.frame_size
        # The filter writes a line on each picture to the log before that is passed on. Every half a second ffmpeg would
        # write a line without an end before one of them.
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-nostdin", "-nostats", *FFMPEG_LIMITS]
        command += ["-i", str(self.path.resolve()), "-vf", "showinfo=checksum=0", "-fps_mode", "passthrough"]
        command += ["-s", f"{width}x{height}", "-pix_fmt", "rgb24", "-f", "rawvideo", "-"]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            times, words = SimpleQueue[float | None](), deque[str](maxlen=1)
            read = start(_read_times, process.stderr, times, words)
            try:
                size = width * height * 3
                while len(data := process.stdout.read(size)) == size:
                    frame = np.frombuffer(data, np.uint8).reshape(height, width, 3)
                    yield TimedFrame(frame[:frame_height, :frame_width], times.get(timeout=_PATIENCE))
                read.result()
                if data or process.wait():
                    raise InputError(f"{self.path} cannot be read: {truncate(' '.join(words))}")
            except Empty:
                raise InputError(f"{self.path} cannot be read: ffmpeg does not say when its pictures are.") from None
            finally:
                process.kill()


def _read_times(log: IO[bytes], times: "SimpleQueue[float | None]", words: deque[str]) -> None:
    """Read ffmpeg's log: the times of pictures, in seconds, and the last of its other lines."""
    base = Fraction(0)
    for line in log:
        text = line.decode(errors="replace").strip()
        if found := _TIME_BASE.match(text):
            base = Fraction(int(found[1]), int(found[2]))
        elif found := _TIME.match(text):
            times.put(None if found[1] == "NOPTS" else float(int(found[1]) * base))
        elif text and not text.startswith("[Parsed_showinfo"):
            words.append(text)


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

    def frames(self) -> Iterator[TimedFrame]:
        """Decode them, turned as their cameras say, without transparency.

        Raises:
            InputError: One is damaged, has too many pixels, or more than 8 bits per channel.
        """
        from PIL import Image, ImageOps, UnidentifiedImageError

        for number, path in enumerate(self.paths):
            with reading(path, SyntaxError, Image.DecompressionBombError), open_file(path) as file:
                try:
                    image = Image.open(file, formats=FORMATS)
                except UnidentifiedImageError as error:
                    raise ValueError(f"it is none of {', '.join(FORMATS)}") from error
                _check_pixels(path, *image.size)
                mode, frame = image.mode, np.array(ImageOps.exif_transpose(image).convert("RGB"))
            if mode in ("I", "F") or mode.startswith("I;"):
                raise InputError(f"{path} must have 8 bits per channel. Received Pillow's mode {mode!r}. Convert it.")
            yield TimedFrame(frame, None if self.fps is None else number / self.fps)


def open_frames(path: Path, fps: float | None = None) -> Video | Pictures:
    """Open a video, a folder of pictures, or one picture.

    Args:
        path: The file or folder.
        fps: Frames per second of pictures, if known.

    Raises:
        InputError: It does not exist, cannot be read, or has no pictures; or `fps` is given for a video.
    """
    with reading(path):
        if path.is_dir():
            paths = [file for file in path.iterdir() if _is_picture(file)]
            if not paths:
                raise InputError(f"The folder {path} must have pictures ({' '.join(PICTURES)}). Received none.")
            return _begun(Pictures(sorted(paths, key=_natural), fps))
        if not path.exists():
            raise InputError(f"There is no file or folder {path}. Pass a video, or a folder of pictures.")
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


def batch(frames: Iterator[TimedFrame], size: int, max_bytes: int = 2**28) -> Generator[list[TimedFrame]]:
    """Group neighbouring frames of one size: from 1 to `size` frames, of at most `max_bytes`, or one frame.

    Args:
        frames: The frames.
        size: The most frames of a batch.
        max_bytes: The most bytes of a batch of two or more.

    Raises:
        InputError: A frame is damaged; those before it have been yielded.
    """
    group: list[TimedFrame] = []
    try:
        for one in frames:
            first = group[0].frame if group else one.frame
            if first.shape != one.frame.shape or (group and (len(group) + 1) * one.frame.nbytes > max_bytes):
                yield group
                group = []
            group.append(one)
            if len(group) == size:
                yield group
                group = []
    except InputError:
        if group:
            yield group
        raise
    if group:
        yield group


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES and not path.name.startswith(".") and path.is_file()


def _times(width: int, height: int) -> str:
    return f"{width} x {height}"


def _natural(path: Path) -> tuple[list[str | int], str]:
    """A sorting key by which numbers in names count as numbers; texts and numbers alternate."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", path.name))], path.name


def _check_pixels(path: Path, width: int, height: int) -> None:
    """Raise an InputError if a picture is too large to be decoded."""
    if width * height > MAX_PIXELS:
        raise InputError(f"{path} must have at most {MAX_PIXELS:,} pixels. Received {_times(width, height)}. Scale it.")
