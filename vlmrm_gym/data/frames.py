"""Frames of a video or of pictures, one after the other: neither is ever wholly in memory."""

import re
import subprocess
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.untrusted import MAX_PIXELS, check_file, open_file, reading
from vlmrm_gym._util.validation import truncate
from vlmrm_gym.data.videos import Layout

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
"""Suffixes of pictures."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
"""Formats of pictures, whatever their suffix: Pillow knows others that start programs."""
_DEMUXERS = "mov,matroska,avi,gif,apng,mpeg,mpegts,mpegvideo,m4v,flv,asf,ogg,ivf,h264,hevc,webp,webp_pipe,yuv4mpegpipe"
"""Formats of ffmpeg that hold a video in one file. Playlists and scripts, which name other files, are left out."""
_COMMENT = re.compile(
    r'^comment=\{"vlmrm_gym": \{"video_size": \[(\d+), (\d+)\], "frame_size": \[(\d+), (\d+)\]\}\}$',
    re.ASCII | re.MULTILINE,
)
"""What `Layout.comment` is, as ffmpeg prints it."""


class TimedFrame(NamedTuple):
    """A frame of a video, or a picture."""

    frame: NDArray[np.uint8]
    """RGB, uint8 (H, W, 3)."""
    seconds: float | None
    """When it is shown; None if that is not known."""


@dataclass(frozen=True, eq=False)
class Video:
    """A video file that ffmpeg can decode."""

    path: Path
    times: NDArray[np.float64]
    """When each picture is shown, in seconds; NaN where that is not known."""
    size: tuple[int, int]
    """Width and height of its pictures."""
    frame_size: tuple[int, int]
    """Those of the frames without the strip: of the whole picture, if the video was cut or scaled."""
    note: str | None
    """A sentence on the strip below the frames, if the video has, or had, one."""

    @property
    def count(self) -> int:
        """Number of pictures."""
        return len(self.times)

    @property
    def fps(self) -> float | None:
        """Frames per second, on average; None if that is not known."""
        length = self.times[-1] - self.times[0]
        return float(max((self.count - 1) / length, 0.01)) if length > 0 else None

    @classmethod
    def open(cls, path: Path) -> "Video":
        """Decode it once for its size and its times. An InputError if it is none, or has too many pixels."""
        check_file(path)
        times = ["-an", "-sn", "-fps_mode", "passthrough", "-enc_time_base", "demux", "-f", "framecrc", "-"]
        run = subprocess.run(_ffmpeg(path, *times), capture_output=True, check=False)
        for width, height in re.findall(rb"Picture size (\d+)x(\d+) exceeds", run.stderr):
            _check_pixels(path, int(width), int(height))
        headers = dict(re.findall(r"^#(\w+) 0: (\d+\D\d+)$", text := run.stdout.decode(), re.MULTILINE))
        shown = re.findall(r"^0, *-?\w+, *(-?\w+),", text, re.MULTILINE)
        if run.returncode or not shown:
            reason = run.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it has no pictures in it"]
            raise InputError(f"{path} cannot be read: {truncate(reason[0])}. Pass a video, or a folder of pictures.")
        width, height = map(int, headers["dimensions"].split("x"))
        base, size, layout = Fraction(headers["tb"]), (width, height), read_layout(path)
        frame_size, note = size, None
        if layout is not None and layout.video_size == size:
            frame_size = layout.frame_size
            note = f"{path}: the strip below the frames is left out. Frames of {_by(frame_size)} are scored."
        elif layout is not None:
            note = (
                f"{path} had a strip below its frames, and its size has changed since, from {_by(layout.video_size)} "
                f"to {_by(size)}. Whole pictures are scored. Score the original."
            )
        seconds = np.array([np.nan if one == "NOPTS" else float(int(one) * base) for one in shown])
        return cls(path, seconds, size, frame_size, note)

    def frames(self) -> Generator[TimedFrame]:
        """Decode it: each picture once, at its own time; see `frame_size`. An InputError if it is damaged."""
        (width, height), (frame_width, frame_height) = self.size, self.frame_size
        raw = ["-fps_mode", "passthrough", "-s", f"{width}x{height}", "-pix_fmt", "rgb24", "-f", "rawvideo", "-"]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with reading(self.path), subprocess.Popen(_ffmpeg(self.path, *raw), **pipes) as decoder:
            assert decoder.stdout is not None
            try:
                for number, seconds in enumerate(self.times.tolist()):
                    data = decoder.stdout.read(width * height * 3)
                    if len(data) < width * height * 3:
                        raise ValueError(f"it is damaged after {number:,} of {self.count:,} frames")
                    frame = np.frombuffer(data, np.uint8).reshape(height, width, 3)
                    yield TimedFrame(frame[:frame_height, :frame_width], None if np.isnan(seconds) else seconds)
            finally:
                decoder.kill()


def read_layout(path: Path) -> Layout | None:
    """Read the layout that a video's metadata have; None if they have none, or the file cannot be read."""
    read = subprocess.run(_ffmpeg(path, "-f", "ffmetadata", "-"), capture_output=True, check=False)
    if (comment := _COMMENT.search(read.stdout.decode(errors="replace"))) is None:
        return None
    video_width, video_height, width, height = map(int, comment.groups())
    is_part = 0 < width <= video_width and 0 < height <= video_height
    return Layout((video_width, video_height), (width, height)) if is_part else None


def _ffmpeg(path: Path, *options: str) -> list[str]:
    import imageio_ffmpeg

    limits = ["-format_whitelist", _DEMUXERS, "-protocol_whitelist", "file", "-max_pixels", str(MAX_PIXELS)]
    executable = imageio_ffmpeg.get_ffmpeg_exe()
    return [executable, "-v", "error", "-nostdin", *limits, "-i", str(path.resolve()), *options]


@dataclass(frozen=True)
class Pictures:
    """Pictures, each of a size of its own."""

    paths: Sequence[Path]
    fps: float | None
    """Frames per second, if known."""
    note: str | None = None

    @property
    def count(self) -> int:
        """Number of pictures."""
        return len(self.paths)

    def frames(self) -> Generator[TimedFrame]:
        """Decode them, turned as cameras say, opaque. An InputError if one is damaged, too large, or above 8 bits."""
        for number, path in enumerate(self.paths):
            with open_file(path) as file:
                frame = decode_picture(file, path)
            yield TimedFrame(frame, None if self.fps is None else number / self.fps)


def decode_picture(file: IO[bytes], name: str | Path) -> NDArray[np.uint8]:
    """Decode a picture, uint8 (H, W, 3); see `Pictures.frames`. `name` is for messages."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    with reading(name, SyntaxError, Image.DecompressionBombError):
        try:
            image = Image.open(file, formats=FORMATS)
        except UnidentifiedImageError as error:
            raise ValueError(f"it is none of {', '.join(FORMATS)}") from error
        _check_pixels(name, *image.size)
        mode, frame = image.mode, np.array(ImageOps.exif_transpose(image).convert("RGB"))
    if mode in ("I", "F") or mode.startswith("I;"):
        raise InputError(f"{name} must have 8 bits per channel. Received Pillow's mode {mode!r}. Convert it.")
    return frame


def open_frames(path: Path, fps: float | None = None) -> Video | Pictures:
    """Open a video, a folder of pictures, or one picture; `fps` is of pictures.

    An InputError if it does not exist, cannot be read, or has no pictures; or `fps` is given for a video.
    """
    with reading(path):
        if not path.exists():
            raise InputError(f"There is no file or folder {path}. Pass a video, or a folder of pictures.")
        files = sorted(path.iterdir(), key=_natural) if path.is_dir() else [path]
        pictures = Pictures([file for file in files if is_picture(file)], fps)
    if pictures.count:
        next(pictures.frames())  # if the first cannot be decoded, that is said before a model is loaded
        return pictures
    if path.is_dir():
        raise InputError(f"The folder {path} must have pictures ({' '.join(PICTURES)}). Received none.")
    if fps is not None:
        raise InputError(f"`fps` is for pictures. Received {fps:g} for {path}, a video with its own. Leave it out.")
    return Video.open(path)


def batch(frames: Iterator[TimedFrame], size: int, max_bytes: int = 2**28) -> Iterator[list[TimedFrame]]:
    """Group neighbouring frames of one size: from 1 to `size` frames, of at most `max_bytes`, or one frame."""
    for shape, alike in groupby(frames, key=lambda one: one.frame.shape):
        most = max(1, min(size, max_bytes // int(np.prod(shape))))
        while group := list(islice(alike, most)):
            yield group


def as_cell(text: str) -> str:
    """A text as a cell of a table, with an apostrophe before it where a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def is_picture(path: Path) -> bool:
    """Tell whether a path is the file of a picture, by its suffix; hidden files are none."""
    return path.suffix.lower() in PICTURES and not path.name.startswith(".") and path.is_file()


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def _natural(path: Path) -> tuple[list[str | int], str]:
    """A sorting key by which numbers in names count as numbers; texts and numbers alternate."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", path.name))], path.name


def _check_pixels(path: str | Path, width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise InputError(f"{path} must have at most {MAX_PIXELS:,} pixels. Received {width} x {height}. Scale it.")
