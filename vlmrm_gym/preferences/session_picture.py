"""A picture of a session: its pairs, with their answers."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.endpoint.messages import encode
from vlmrm_gym.files import atomic_write
from vlmrm_gym.preferences.learner import Session
from vlmrm_gym.preferences.pairs import Answer, Pair, Side
from vlmrm_gym.preferences.pictures import montage, shrink, spread

MAX_PAIRS, MAX_MOMENTS, BORDER, MAX_WIDTH = 12, 4, 6, 1_600
"""Pairs of a picture, states of a segment in it; widths of a frame, and of a picture of several pairs, in pixels."""
HEIGHT = 120
"""The most pixels of a view's height: pictures of full size take a second and megabytes each."""
_CHOSEN, _MISTAKEN, _EQUAL, _NOT = (40, 160, 70), (210, 50, 50), (120, 120, 120), (255, 255, 255)


def write_session(session: Session, path: Path) -> None:
    """Write a picture of a session's first pairs, in rows; the first segment of each is on the left.

    What was preferred has a green frame, or a red one if the grade prefers the other. Sides that were said to be equal
    have grey ones, and those of a pair that was not answered none.
    """
    rows = zip(session.pairs[:MAX_PAIRS], session.answers, strict=False)
    gap = ((0, 2 * BORDER), (0, 4 * BORDER), (0, 0))
    drawn = [np.pad(_draw(pair, answer), gap, constant_values=255) for pair, answer in rows]
    columns = min(len(drawn), max(1, MAX_WIDTH // drawn[0].shape[1]))
    drawn += [np.full_like(drawn[0], 255)] * (-len(drawn) % columns)
    parts = [np.concatenate(drawn[i : i + columns], axis=1) for i in range(0, len(drawn), columns)]
    content = encode(np.concatenate(parts))
    atomic_write(path, lambda unfinished: unfinished.write_bytes(content))


def _draw(pair: Pair, answer: Answer | None) -> NDArray[np.uint8]:
    """A pair, uint8 (H, W, 3)."""
    said = None if answer is None else answer.preference
    colors = [_EQUAL, _EQUAL] if said == 0.5 else [_NOT, _NOT]
    if said is not None and said != 0.5:
        first, second = pair.first.grades, pair.second.grades
        better = 0.0 if first is None or second is None else np.sum(second) - np.sum(first)
        colors[said > 0.5] = _MISTAKEN if better * (said - 0.5) < 0 else _CHOSEN
    sides = (_framed(side, color) for side, color in zip((pair.first, pair.second), colors, strict=True))
    return np.concatenate(list(sides), axis=1)


def _framed(side: Side, color: tuple[int, int, int]) -> NDArray[np.uint8]:
    """A few states of a segment in a frame of a colour."""
    chosen = np.isin(np.arange(len(side)), spread(len(side), MAX_MOMENTS))
    frames = side.draw(side.states[chosen])
    inner = shrink(montage(frames), HEIGHT * frames.shape[1])
    framed = np.empty((inner.shape[0] + 2 * BORDER, inner.shape[1] + 2 * BORDER, 3), dtype=np.uint8)
    framed[:] = color
    framed[BORDER:-BORDER, BORDER:-BORDER] = inner
    return framed
