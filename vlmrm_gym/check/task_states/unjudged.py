"""States of a task whose own judge is not used, since labels of rollouts say what succeeds."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.check.task_states.base import Numbers, Rows, StatePath, TaskStates


class Unjudged:
    """The same states, of which none is known to succeed.

    Args:
        task: The states with their judge.
    """

    has_judge = False

    def __init__(self, task: TaskStates) -> None:
        self._task = task
        self.dimensions = task.dimensions

    def succeeds(self, states: Rows) -> NDArray[np.bool_]:
        """Not known: labels are of the states of rollouts only."""
        raise NotImplementedError

    def margins(self, states: Rows) -> Mapping[str, Numbers]:
        """Empty: conditions are not known."""
        return {}

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """See `TaskStates`."""
        return self._task.sample(count, rng)

    def goals(self, count: int, rng: np.random.Generator) -> Rows:
        """None is known: float64 (0, S)."""
        return self._task.sample(1, rng)[:0]

    def perturb(self, states: Rows, offsets: NDArray[np.float64]) -> Rows:
        """See `TaskStates`."""
        return self._task.perturb(states, offsets)

    def paths(self) -> Sequence[StatePath]:
        """See `TaskStates`."""
        return self._task.paths()
