"""Segments as pictures: for models to look at, for people, and small ones to keep."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.endpoint.messages import encode

Frames = NDArray[np.uint8]
"""All views of successive states, uint8 (T, V, H, W, 3)."""


def spread(length: int, count: int) -> NDArray[np.int64]:
    """The numbers of at most `count` of `length` states: the last, and others evenly before it."""
    return (
        np.unique(np.linspace(length - 1, 0, count).round().astype(np.int64)) if count > 1 else np.array([length - 1])
    )


def montage(frames: Frames) -> NDArray[np.uint8]:
    """One picture of states of several views: time goes to the right, views go down. uint8 (V H, T W, 3)."""
    moments, views, height, width, channels = frames.shape
    return frames.transpose(1, 2, 0, 3, 4).reshape(views * height, moments * width, channels)


def shrink(picture: NDArray[np.uint8], height: int) -> NDArray[np.uint8]:
    """A picture, uint8 (H, W, 3), made smaller if it is higher than `height`."""
    from PIL import Image

    image = Image.fromarray(picture)
    if image.height <= height:
        return picture
    return np.asarray(image.resize((max(1, image.width * height // image.height), height), Image.Resampling.LANCZOS))


def encode_clip(frames: Frames, fps: float) -> bytes:
    """An animation (WebP), which repeats, or a still picture (PNG) of a single state."""
    from PIL import Image

    first, *others = [Image.fromarray(montage(frame[None])) for frame in frames]
    if not others:
        return encode(montage(frames))
    # The last state is what a clip leads to: it stays for a moment.
    durations = [round(1000 / fps)] * len(others) + [800]
    settings: dict[str, Any] = {"append_images": others, "duration": durations, "lossless": True, "method": 0}
    first.save(stream := io.BytesIO(), "WEBP", save_all=True, **settings)
    return stream.getvalue()
