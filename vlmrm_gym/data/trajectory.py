"""Successive steps of one environment: what logs keep, pairs compare, and datasets and videos are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.states.states import States

COLUMNS: Mapping[str, Any] = {
    "rewards": np.float32,
    "versions": np.int64,
    "task_rewards": np.float64,
    "success": np.float64,
}
"""What is known of each step: dtypes by name."""
_UNKNOWN: Any = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Trajectory:
    """T successive steps of one environment: an episode, or a part of one.

    `trajectory[a:b]` is a part: views of the same arrays, so rewards that arrive later arrive in both.
    """

    states: States
    """The T states that the steps led to, with scene changes."""
    rewards: NDArray[np.float32] = _UNKNOWN
    """float32 (T,): as delivered; NaN where they have not arrived."""
    versions: NDArray[np.int64] = _UNKNOWN
    """int64 (T,): the version of the head that made each reward; 0 without one."""
    task_rewards: NDArray[np.float64] = _UNKNOWN
    """float64 (T,): the environment's own rewards; NaN where they are not known."""
    success: NDArray[np.float64] = _UNKNOWN
    """float64 (T,): 1 where the state succeeds, 0 where it fails, NaN where the environment does not say."""
    env_index: int = 0
    """The environment in its vector, from 0."""
    episode_index: int = 0
    """The environment's episodes, counted from 0."""
    start: int = 0
    """The `vlm_step_index` of the first step; in a dataset the first step's number in its episode."""
    source: str = ""
    """What chose the actions, where that is known: "random", "constant", or the name of a run or of a dataset."""
    initial: States | None = None
    """The state after the reset: one. As all below, of whole episodes that were played or read from a dataset only."""
    observations: Any = None
    """(T + 1, ...): the reset's and those of the steps, stacked; see `stack_values`."""
    actions: Any = None
    """(T, ...), stacked in the same way."""
    terminated: NDArray[np.bool_] | None = None
    """bool (T,)."""
    truncated: NDArray[np.bool_] | None = None
    """bool (T,). The last one is true if the number of steps ended the episode."""

    def __post_init__(self) -> None:
        for name, dtype in COLUMNS.items():
            if getattr(self, name) is None:
                unknown = 0 if name == "versions" else np.nan
                object.__setattr__(self, name, np.full(len(self.states), unknown, dtype=dtype))

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, part: slice) -> "Trajectory":
        """Successive steps of it, such as `trajectory[2:5]`."""
        first, stop, stride = part.indices(len(self))
        if stride != 1:
            raise ValueError(f"A part of a trajectory must be successive steps. Received a stride of {stride}.")
        columns: dict[str, Any] = {name: getattr(self, name)[first:stop] for name in COLUMNS}
        whole = {"initial": None, "observations": None, "actions": None, "terminated": None, "truncated": None}
        return replace(self, states=self.states[first:stop], start=self.start + first, **columns, **whole)

    @property
    def with_initial(self) -> States:
        """The T + 1 states of a whole episode: the one after the reset first. Without it, the T states."""
        return self.states if self.initial is None else States.concatenate([self.initial, self.states])

    @property
    def nbytes(self) -> int:
        """Memory of states, rewards, versions and successes, in bytes."""
        return self.states.nbytes + sum(getattr(self, name).nbytes for name in COLUMNS)

    @property
    def known_success(self) -> NDArray[np.bool_] | None:
        """`success` as bool (T,); None unless it is known of every step."""
        return None if np.isnan(self.success).any() else self.success == 1
