"""Answers that were given elsewhere: a CSV file of two segments of a dataset and a preference, or arrays of frames."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym._util.errors import InputError, as_input_error
from vlmrm_gym._util.untrusted import reading
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.data.labels import open_table
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.learning.answers import Place, Record
from vlmrm_gym.learning.pairs import Answer, Pair
from vlmrm_gym.states.states import States

COLUMNS = ("first_episode", "first_step", "second_episode", "second_step", "steps", "preference")
"""Of the table; steps are counted from 0, the state that the first action led to."""


class Compared(NamedTuple):
    """A line of the table."""

    first: Place
    second: Place
    preference: float


def read_table(path: Path) -> list[Compared]:
    """Read a CSV file with the columns `COLUMNS`; an InputError names the line that cannot be used."""
    rows = []
    with reading(path, csv.Error):
        table = open_table(path, COLUMNS)
        for line in table:
            words = [(line[name] or "").strip() for name in COLUMNS]
            try:
                first, start, second, other, steps = (int(word) for word in words[:5])
                preference = float(words[5])
            except ValueError:
                first = start = second = other = steps = -1
                preference = np.nan
            if min(first, start, second, other, steps - 1) < 0 or not 0 <= preference <= 1:
                rule = "must have episodes and steps from 0 on, `steps` of at least 1, and a preference from 0 to 1"
                raise InputError(f"{path}, line {table.line_num}: it {rule}. Received {short_repr(words)}.")
            rows.append(Compared((0, first, start, steps), (0, second, other, steps), preference))
    if not rows:
        raise InputError(f"{path} must have at least one preference. Received none.")
    return rows


def make_records(pairs: Sequence[Pair], preferences: ArrayLike, labeler: str) -> list[Record]:
    """Make the answers about pairs, whose preferences are from 0 to 1: the probability that the second is closer."""
    values = np.asarray(preferences, dtype=np.float64)
    with as_input_error():
        answers = [Answer(preference=value) for value in values.tolist()]
    return [Record(pair.key, labeler, one) for pair, one in zip(pairs, answers, strict=True)]


def make_pairs(first: Any, second: Any, preferences: ArrayLike, prompt: str) -> list[Pair]:
    """Make pairs of segments of frames, uint8 (N, T, H, W, 3), one preference each; a ValueError if they are others."""
    sides, count = (np.asarray(first), np.asarray(second)), len(np.atleast_1d(np.asarray(preferences)))
    for name, side in zip(("first", "second"), sides, strict=True):
        if side.dtype != np.uint8 or side.ndim != 5 or side.shape[4] != 3 or side.shape != sides[0].shape:
            raise ValueError(
                f"`{name}` must be frames, uint8 (N, T, H, W, 3), as many of both. Received {side.dtype} {side.shape}."
            )
    if not count or count != len(sides[0]):
        raise ValueError(f"`preferences` must have one number for each of {len(sides[0])} pairs. Received {count}.")

    def draw(states: States, size: Any = None, views: Any = None) -> NDArray[np.uint8]:
        return states.rows[:, None]

    segments = ([Trajectory(states=States(one)) for one in side] for side in sides)
    return [Pair(first=one, second=other, prompt=prompt, draw=draw) for one, other in zip(*segments, strict=True)]
