"""Segments as pictures: for models to look at, for people, and small ones to keep."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.files import atomic_write
from vlmrm_gym.learning.pairs import Answer, Pair, grade_differences
from vlmrm_gym.rewards.endpoint.messages import encode

Frames = NDArray[np.uint8]
"""All views of successive states, uint8 (T, V, H, W, 3)."""
MAX_PAIRS, MAX_MOMENTS, BORDER, MAX_WIDTH = 12, 4, 6, 1_600
"""Pairs of a picture, states of a segment in it; widths of a frame, and of a picture of several pairs, in pixels."""
HEIGHT = 120
"""The most pixels of a view's height: pictures of full size take a second and megabytes each."""
_CHOSEN, _MISTAKEN, _EQUAL, _UNMARKED = (40, 160, 70), (210, 50, 50), (120, 120, 120), (255, 255, 255)


def spread(length: int, count: int) -> NDArray[np.int64]:
    """The numbers of at most `count` of `length` states: the last, and others evenly before it."""
    chosen = np.linspace(length - 1, 0, count) if count > 1 else np.array([length - 1])
    return np.unique(chosen.round().astype(np.int64))


def montage(frames: Frames) -> NDArray[np.uint8]:
    """One picture of states of several views: time goes to the right, views go down. uint8 (V H, T W, 3)."""
    moments, views, height, width, channels = frames.shape
    return frames.transpose(1, 2, 0, 3, 4).reshape(views * height, moments * width, channels)


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


def write_round(pairs: Sequence[Pair], answers: Sequence[Answer | None], path: Path) -> None:
    """Write a picture of a round's first pairs, in rows; the first segment of each is on the left.

    What was preferred has a green frame, or a red one if the grade prefers the other. Sides that were said to be equal
    have grey ones, and those of a pair that was not answered none.
    """
    rows = zip(pairs[:MAX_PAIRS], answers, strict=False)
    gap = ((0, 2 * BORDER), (0, 4 * BORDER), (0, 0))
    drawn = [np.pad(_draw(pair, answer), gap, constant_values=255) for pair, answer in rows]
    columns = min(len(drawn), max(1, MAX_WIDTH // drawn[0].shape[1]))
    drawn += [np.full_like(drawn[0], 255)] * (-len(drawn) % columns)
    parts = [np.concatenate(drawn[i : i + columns], axis=1) for i in range(0, len(drawn), columns)]
    content = encode(np.concatenate(parts))
    atomic_write(path, lambda unfinished: unfinished.write_bytes(content))


def _draw(pair: Pair, answer: Answer | None) -> NDArray[np.uint8]:
    """A few states of both segments, each in a frame of a colour: uint8 (H, W, 3)."""
    from PIL import Image, ImageOps

    preference = None if answer is None else answer.preference
    colors = [_EQUAL, _EQUAL] if preference == 0.5 else [_UNMARKED, _UNMARKED]
    if preference is not None and preference != 0.5:
        (better,) = grade_differences([pair])
        colors[preference > 0.5] = _MISTAKEN if better * (preference - 0.5) < 0 else _CHOSEN
    framed = []
    for side, color in zip((pair.first, pair.second), colors, strict=True):
        frames = pair.draw(side.states[spread(len(side), MAX_MOMENTS)])
        image = Image.fromarray(montage(frames))
        image.thumbnail((image.width, HEIGHT * frames.shape[1]), Image.Resampling.LANCZOS)
        framed.append(np.asarray(ImageOps.expand(image, BORDER, color)))
    return np.concatenate(framed, axis=1)
