"""Segments as pictures: for models to look at, for people, and small ones to keep."""

import io
from itertools import pairwise
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


def draw_trajectory(frames: Frames) -> NDArray[np.uint8]:
    """The last state, with the path of what moved drawn onto it (VARP, arXiv 2503.13817).

    What moved between two frames is where they differ; the path joins the centres of that, from blue to red. No
    projection of the scene is needed, and any environment has one. Things that move at the same time have one path.

    Args:
        frames: uint8 (T, V, H, W, 3).

    Returns:
        uint8 (V, H, W, 3).
    """
    from PIL import Image, ImageDraw

    drawn = []
    for view in range(frames.shape[1]):
        changed = np.abs(np.diff(frames[:, view].astype(np.int16), axis=0)).max(-1) > 24  # (T - 1, H, W)
        path = [tuple(np.argwhere(moved).mean(0)[::-1].tolist()) for moved in changed if moved.any()]
        image = Image.fromarray(frames[-1, view])
        draw = ImageDraw.Draw(image)
        for i, (start, stop) in enumerate(pairwise(path)):
            red = round(255 * (i + 1) / (len(path) - 1))
            draw.line((*start, *stop), fill=(red, 0, 255 - red), width=max(2, image.height // 100))
        drawn.append(np.asarray(image))
    return np.stack(drawn)
