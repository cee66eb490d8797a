"""States of a task of which labels of rollouts, not the task's own function, say which succeed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.envs.states import Rows, StatePath, TaskStates


class LabelledStates(TaskStates):
    """The same states, of which none is known to succeed.

    Args:
        task: The states with their success function.
    """

    def __init__(self, task: TaskStates) -> None:
        self._task = task
        self.dimensions = task.dimensions

    @property
    def has_success_fn(self) -> bool:
        """No."""
        return False

    def succeeds(self, states: Rows) -> NDArray[np.bool_]:
        """Not known: labels are of the states of rollouts only."""
        raise NotImplementedError

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
