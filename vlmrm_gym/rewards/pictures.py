"""Pictures as values: read once, and kept as text, so that they travel with the reward that they are of.

Imports Pillow where a picture is read.
"""

import base64
import hashlib
import io
import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.validation import short_repr

MAX_PIXELS = 64_000_000
"""Pixels of a picture, at most: a small file can decompress to any size."""
MAX_SIDE = 1024
"""A larger picture is kept at this size of its longer side, in pixels: no model looks at more."""
MAX_PICTURES = 1_000
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
_PREFIX = "data:image/png;base64,"


class Picture(str):
    """A picture as the text of a data URI, "data:image/png;base64,...", which JSON can hold."""

    @property
    def content(self) -> bytes:
        """The content of a file, PNG."""
        return base64.b64decode(self.removeprefix(_PREFIX))

    @property
    def frame(self) -> NDArray[np.uint8]:
        """The picture: uint8 (H, W, 3)."""
        from PIL import Image

        with Image.open(io.BytesIO(self.content), formats=("PNG",)) as image:
            return np.array(image)

    @property
    def digest(self) -> str:
        """Tells it from others, 16 digits."""
        return hashlib.sha256(self.content).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"<picture {self.digest}>"


class _Refused(ValueError):
    """A picture that can be read, but is not taken."""


def as_pictures(name: str, given: Any) -> list[Picture]:
    """Read pictures: files, data URIs, or uint8 arrays (H, W, 3), (H, W, 4) or (H, W); or one of these.

    The rotation that a camera has noted (EXIF) is applied. Grey becomes three equal channels, and 16 bits become 8.
    Transparent pixels are white. A TypeError for anything else; a FileNotFoundError for a file that does not exist; a
    ValueError for a file that is no picture, or an animation, or has more than `MAX_PIXELS`, and for none, or too many.
    """
    is_one = isinstance(given, str | os.PathLike) or (isinstance(given, np.ndarray) and given.ndim < 4)
    if not is_one and not isinstance(given, Sequence | np.ndarray):
        raise TypeError(_rule(name, given))
    pictures: list[Any] = [given] if is_one else list(given)  # pyright: ignore[reportArgumentType]
    if not 1 <= len(pictures) <= MAX_PICTURES:
        raise ValueError(f"`{name}` must be from 1 to {MAX_PICTURES:,} pictures. Received {len(pictures)}.")
    return [_as_picture(name, one) for one in pictures]


def _rule(name: str, given: Any) -> str:
    return f"`{name}` must be files of pictures, or uint8 arrays (H, W, 3). Received {short_repr(given)}."


def _as_picture(name: str, given: Any) -> Picture:
    if isinstance(given, Picture):
        return given
    if isinstance(given, np.ndarray):
        if given.dtype != np.uint8:
            raise TypeError(f"{_rule(name, given.dtype)} Scale to 0..255 and convert.")
        channels = given.shape[2] if given.ndim == 3 else 0
        if given.ndim not in (2, 3) or channels not in (0, 3, 4) or 0 in given.shape[:2]:
            raise ValueError(f"`{name}` must be arrays (H, W, 3), (H, W, 4) or (H, W). Received {given.shape}.")
        from PIL import Image

        return _encode(name, Image.fromarray(np.ascontiguousarray(given)), f"an array {given.shape}")
    if not isinstance(given, str | os.PathLike):
        raise TypeError(_rule(name, given))
    text = os.fspath(given)
    if text.startswith("data:"):
        try:
            content = base64.b64decode(text.partition(";base64,")[2], validate=True)
        except ValueError:
            rule = f'`{name}` must be "data:image/png;base64,..." as text'
            raise ValueError(f"{rule}. Received {short_repr(text)}.") from None
        return _read(name, io.BytesIO(content), "the data URI")
    if not os.path.isfile(path := os.path.expanduser(text)):
        raise FileNotFoundError(f"`{name}` must be files of pictures. Received {short_repr(text)}, which is none.")
    return _read(name, path, repr(text))


def _read(name: str, source: Any, received: str) -> Picture:
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # there is a lower limit below
            with Image.open(source, formats=_FORMATS) as image:
                _check_size(name, image.size, received)
                frames: int = image.n_frames if hasattr(image, "n_frames") else 1  # pyright: ignore
                if frames > 1 and image.format != "MPO":  # of a phone: a photo, and a preview of it
                    rule = f"`{name}` must be still pictures. Received {received}, an animation of {frames} frames"
                    raise _Refused(f"{rule}. Save one of them.")
                return _encode(name, ImageOps.exif_transpose(image), received)
    except _Refused:
        raise
    except Exception as error:  # Pillow raises many of damaged files
        kinds = f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}"
        raise ValueError(f"`{name}` must be pictures: {kinds}. Received {received}: {error}.") from None


def _check_size(name: str, size: tuple[int, int], received: str) -> None:
    if size[0] * size[1] > MAX_PIXELS:
        rule = f"`{name}` must be pictures of at most {MAX_PIXELS // 1_000_000} megapixels"
        raise _Refused(f"{rule}. Received {received}, {size[0]} x {size[1]}. Make it smaller.")


def _encode(name: str, image: Any, received: str) -> Picture:
    """Make the value of a picture of Pillow's: in RGB, at most `MAX_SIDE` on its longer side, as PNG."""
    from PIL import Image

    _check_size(name, image.size, received)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise _Refused(f"`{name}` must be pictures of 8 or 16 bits a channel. Received {received}, of 32 bits.")
    if image.mode in ("LA", "PA", "RGBA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("RGB")
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    Image.fromarray(np.asarray(image)).save(file, "PNG")  # a new image: without what the file says of itself
    return Picture(_PREFIX + base64.b64encode(file.getvalue()).decode())
