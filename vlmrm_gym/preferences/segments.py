"""Makes segments to compare, and compares what is said of pairs with their grades."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.preferences.pairs import Answer, Pair, Side
from vlmrm_gym.rendering.states import States
from vlmrm_gym.tasks import Task

Grade = Callable[[NDArray[np.float64]], Any]
"""How near states are to the goal: from float64 (N, S) to (N,), or None where that is not known."""


def make_side(
    draw: Callable[..., NDArray[np.uint8]],
    grade: Grade | None,
    states: States,
    task_rewards: NDArray[np.float64],
    where: tuple[int, int, int],
) -> Side:
    """A segment of T states with their grades, if these are known; the rest is as in `Side`."""
    grades = None if grade is None or states.rows.ndim != 2 else grade(states.rows)
    grades = None if grades is None else np.asarray(grades, dtype=np.float64)
    return Side(states=states, draw=draw, grades=grades, task_rewards=task_rewards, where=where)


def grade_of_task(task: Task | None) -> Grade | None:
    """The grade of a task's record; None without a record."""
    states = None if task is None else task.make_states()
    return None if states is None else states.grade


def grade_differences(pairs: Sequence[Pair]) -> NDArray[np.float64]:
    """By how much the grades of the second segments add up to more, float64 (N,); NaN where there are none."""
    return np.array([_sum(pair.second.grades) - _sum(pair.first.grades) for pair in pairs], dtype=np.float64)


def _sum(grades: NDArray[np.float64] | None) -> float:
    return np.nan if grades is None else float(grades.sum())


def answer_differences(answers: Sequence[Answer | None]) -> NDArray[np.float64]:
    """Preferences of answers minus 0.5, float64 (N,): above 0 for the second; NaN where there is none."""
    given = [None if answer is None else answer.preference for answer in answers]
    return np.array([np.nan if one is None else one - 0.5 for one in given], dtype=np.float64)


def agreement(said: NDArray[Any], truth: NDArray[np.float64]) -> float:
    """The fraction of decided answers whose sign is that of the truth; NaN if there is none."""
    decided = np.isfinite(said) & np.isfinite(truth) & (said != 0) & (truth != 0)
    return float(((said > 0) == (truth > 0))[decided].mean()) if decided.any() else np.nan
