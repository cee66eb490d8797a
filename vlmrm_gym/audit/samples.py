"""The states that a check looks at, with the features that rewards are made of."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.audit.scene import Scene
from vlmrm_gym.envs.states import TaskStates
from vlmrm_gym.rendering import States
from vlmrm_gym.rewards.heads import Features
from vlmrm_gym.rollouts.play import Rollout

AROUND = 300
"""States that `TaskStates.sample` makes."""
GOALS = 60
"""States that succeed."""


@dataclass(frozen=True, eq=False)
class Sample:
    """States of one kind."""

    states: States
    features: Features
    """float32 (N, V, D): of 10,000 states from one camera, by the widest models (D = 1,280), 50 MB."""
    success: NDArray[np.bool_] | None
    """bool (N,); None if it is not known."""

    @property
    def has_both(self) -> bool:
        """Whether there are successes and failures among them."""
        return self.success is not None and bool(self.success.any()) and not self.success.all()

    def __len__(self) -> int:
        return len(self.states)


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """All states of a scene that are encoded once, for all choices of prompt, alpha and combination."""

    rollouts: Sequence[Rollout]
    visited: Sample
    """The states of all rollouts, one after the other."""
    first: Features
    """Of the initial state of every rollout."""
    around: Sample | None
    """States that `TaskStates.sample` makes, also called "states around the goal"; None if none can be made."""
    goals: Sample | None
    """States that succeed; None if none is known."""
    passed: bool = False
    """Whether the user passed the rollouts. The headline measures are then of them."""

    @property
    def groups(self) -> NDArray[np.int64]:
        """The number of the rollout that each visited state is from: int64 (N,)."""
        return np.repeat(np.arange(len(self.rollouts)), [len(rollout) for rollout in self.rollouts])

    @property
    def labelled(self) -> Sample:
        """The states that the headline measures are of.

        The states around the goal show agreement best, unless the user passed rollouts; of the two, those among which
        are both successes and failures.
        """
        in_order = [self.visited, self.around] if self.passed else [self.around, self.visited]
        return next((own for own in in_order if own is not None and own.has_both), self.visited)

    def along(self, rewards: NDArray[np.float64]) -> Sequence[NDArray[np.float64]]:
        """Rewards of the visited states by rollout, float64 (T,) each."""
        return np.split(rewards, np.cumsum([len(rollout) for rollout in self.rollouts])[:-1])


def collect(
    scene: Scene,
    task: TaskStates | None,
    rollouts: Sequence[Rollout],
    visited: States,
    success: NDArray[np.bool_] | None,
    *,
    passed: bool = False,
    seed: int,
) -> Samples:
    """Encode the states that a check looks at.

    Args:
        scene: Encodes them.
        task: The states of the task; None if states cannot be made.
        rollouts: The rollouts.
        visited: Their N states, one after the other.
        success: bool (N,): which of them succeed; None if that is not known.
        passed: Whether the user passed the rollouts.
        seed: Of the states around the goal.
    """
    initial = States.concatenate([rollout.initial for rollout in rollouts])
    rng = np.random.default_rng(seed)
    around = None
    goals = visited[:0]
    if task is not None:
        rows = task.sample(AROUND, rng)
        around = Sample(States(rows), scene.features(rows), task.succeeds(rows) if task.has_success_fn else None)
        goals = States(task.goals(GOALS, rng))
    if not len(goals) and success is not None:
        goals = visited[np.isin(np.arange(len(visited)), rng.permutation(np.flatnonzero(success))[:GOALS])]
    return Samples(
        rollouts=rollouts,
        visited=Sample(visited, scene.features(visited), success),
        first=scene.features(initial),
        around=around,
        goals=Sample(goals, scene.features(goals), np.ones(len(goals), dtype=bool)) if len(goals) else None,
        passed=passed,
    )
