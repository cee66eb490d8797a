"""Pairs that labelers are asked about, their answers, and how both agree with ground-truth scores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from vlmrm_gym._util.validation import check_fraction
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.rewards.clip import checked, optional
from vlmrm_gym.states.states import States
from vlmrm_gym.tasks import Task

Draw = Callable[..., NDArray[np.uint8]]
"""Called as `draw(states, size=None, views=None)`, such as `envs.scorer.frames`: uint8 (T, V, H, W, 3)."""
Grade = Callable[[NDArray[np.float64]], Any]
"""How near states are to the goal: from float64 (N, S) to (N,), or None where that is not known."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Pair:
    """Two segments, parts of episodes of T steps each, of which one may be closer to the goal."""

    first: Trajectory
    second: Trajectory
    prompt: str
    """The goal."""
    draw: Draw
    """Draws their states."""
    grade: Grade | None = None
    """How near states are to the goal, such as by the task's record; None if that is not known."""
    views: str = ""
    """Describes the cameras: part of the key."""

    @property
    def frames(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Every view of every state of both, uint8 (T, V, H, W, 3). Drawn anew whenever they are read."""
        return self.draw(self.first.states), self.draw(self.second.states)

    @cached_property
    def grades(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """The grade of every state of both, float64 (T,); None if it is not known."""
        rows = self.first.states.rows, self.second.states.rows
        if self.grade is None or rows[0].ndim != 2:
            return None
        first, second = map(self.grade, rows)
        return None if first is None or second is None else (np.asarray(first, float), np.asarray(second, float))

    @cached_property
    def key(self) -> str:
        """Digest of the states of both in this order, views and prompt, hexadecimal."""
        digest = xxh3_128()
        for text in (digest_states(self.first.states), digest_states(self.second.states), self.views, self.prompt):
            digest.update(f"{len(text)} {text}".encode())
        return digest.hexdigest()


def digest_states(states: States) -> str:
    """Digest of states, hexadecimal: of their rows and scene changes."""
    digest = xxh3_128()
    for array in (states.rows, states.clips):
        _update(digest, array)
    for change in states.changes or ():
        fields = {} if change is None else change.fields
        for name in sorted(fields):
            digest.update(name.encode())
            _update(digest, np.asarray(fields[name]))
        _update(digest, None if change is None else change.frame)
    return digest.hexdigest()


def _update(digest: xxh3_128, array: NDArray[Any] | None) -> None:
    if array is None:
        digest.update(b"none")
    else:
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.ndim else array.tobytes())


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A labeler's answer about a pair."""

    preference: float | None = field(metadata={"check": optional(check_fraction)})
    """Probability that the second is closer to the goal: 0 the first is, 1 the second, 0.5 both are equal. None: it was
    skipped, and is never fitted."""
    confidence: float = field(default=1.0, metadata={"check": check_fraction})
    """Weight of the answer in the loss, from 0 to 1."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Values that JSON can hold, for the answers' file: model, tokens, latency, the replies in both orders."""

    def __post_init__(self) -> None:
        checked(self)


def grade_of_task(task: Task | None) -> Grade | None:
    """The grade of a task's record; None without a record."""
    states = None if task is None else task.make_states()
    return None if states is None else states.grade


def grade_differences(pairs: Sequence[Pair]) -> NDArray[np.float64]:
    """By how much the grades of the second segments add up to more, float64 (N,); NaN where there are none."""
    grades = [(np.nan, np.nan) if pair.grades is None else map(np.sum, pair.grades) for pair in pairs]
    return np.array([second - first for first, second in grades], dtype=np.float64)


def answer_differences(answers: Sequence[Answer | None]) -> NDArray[np.float64]:
    """Preferences of answers minus 0.5, float64 (N,): above 0 for the second; NaN where there is none."""
    given = [None if answer is None else answer.preference for answer in answers]
    return np.array([np.nan if one is None else one - 0.5 for one in given], dtype=np.float64)


def agreement(differences: NDArray[Any], truth: NDArray[np.float64]) -> float:
    """The fraction of decided answers whose sign is that of the truth; NaN if there is none."""
    decided = np.isfinite(differences) & np.isfinite(truth) & (differences != 0) & (truth != 0)
    return float(((differences > 0) == (truth > 0))[decided].mean()) if decided.any() else np.nan
