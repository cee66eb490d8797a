"""TaskStates: which states of a task succeed, how near the others are, and how they can be changed."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
"""States as they are captured, float64 (N, S)."""
Numbers = NDArray[np.float64]
"""One number per state, float64 (N,)."""

NEAR_MISS = 0.5
"""How far, in units of its margin, a state may fail a condition and still be a near miss."""


@dataclass(frozen=True, kw_only=True)
class StatePath:
    """A line of states, along which the reward is shown."""

    title: str
    axis: str
    """What `positions` are, with their unit."""
    positions: Numbers
    """float64 (N,), ascending."""
    states: Rows
    """float64 (N, S)."""
    line: str | None = None
    """Label, if paths of one title are lines of one plot. None: a plot of its own, with a line for each alpha."""


class TaskStates(ABC):
    """Knows the states of one task. All arrays of states are float64 (N, S), as captured."""

    dimensions: int
    """How many numbers change a state: D."""
    has_success_fn: bool = True
    """Whether `succeeds` is known."""

    def succeeds(self, states: Rows) -> NDArray[np.bool_]:
        """Find the states that succeed: bool (N,). Only with `has_success_fn`; by default if no margin is negative."""
        return worst_margin(self.margins(states).values()) >= 0

    def grade(self, states: Rows) -> Numbers | None:
        """Score how near states are to success: float64 (N,) from 0 to 1, higher is nearer; None if not known."""
        return None

    def margins(self, states: Rows) -> Mapping[str, Numbers]:
        """Measure how far states are on the right side of each condition's limit: float64 (N,) by name.

        In units of a typical deviation; a state succeeds if all are at least 0. Empty if conditions are not known.
        """
        return {}

    @abstractmethod
    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Sample states of many kinds, successes included if any can be made: float64 (at most count, S)."""

    @abstractmethod
    def goals(self, count: int, rng: np.random.Generator) -> Rows:
        """Sample states that succeed, float64 (count, S); (0, S) if none is known."""

    def example_goal(self) -> Numbers | None:
        """Return a state that succeeds, for pictures: float64 (S,); None if none is known."""
        return next(iter(self.goals(1, np.random.default_rng(0))), None)

    @abstractmethod
    def perturb(self, states: Rows, offsets: NDArray[np.float64]) -> Rows:
        """Change states by offsets, float64 (N, D) in units of a typical change, and made possible again.

        Possible: within the limits of the joints, and without parts inside one another or inside the floor.
        """

    def on_the_way(self, fractions: Numbers) -> Rows | None:
        """Interpolate states from the initial state (0) to the goal (1), for fractions float64 (N,): a curriculum.

        None if no way is known.
        """
        return None

    def paths(self) -> Sequence[StatePath]:
        """Return lines of states that lead to the goal; empty if none is known."""
        return []


def fails_clearly(task: TaskStates, states: Rows) -> NDArray[np.bool_]:
    """Find the states that fail by more than a near miss: bool (N,); every failure, if conditions are not known."""
    margins = task.margins(states)
    if not margins:
        return ~task.succeeds(states)
    return worst_margin(margins.values()) < -NEAR_MISS


def clear_goals(task: TaskStates, count: int) -> Rows:
    """Choose states that succeed by the widest margins, of ten times as many, float64 (count, S); (0, S) without any.

    Goals at the edge of success would make bad pictures of it.
    """
    goals = task.goals(10 * count, np.random.default_rng(0))
    margins = task.margins(goals)
    order = np.argsort(-worst_margin(margins.values()), kind="stable") if margins else np.arange(len(goals))
    return goals[order[:count]]


def worst_margin(margins: Collection[Numbers]) -> Numbers:
    """Find the smallest margin of each state, float64 (N,)."""
    return np.min(list(margins), axis=0)
