"""Samples: the states of a check, with the features that heads turn into rewards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.data.rollouts import check_states, constant_actions, play, random_actions
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.rewards.model import Features
from vlmrm_gym.states import States
from vlmrm_gym.tasks.known_states import TaskStates
from vlmrm_gym.tools.check.rewards import Scene
from vlmrm_gym.tools.check.settings import AuditSettings

ROLLOUTS = 8
"""Rollouts of random actions, and as many of constant actions."""
STEPS = 100
"""The most steps of a rollout."""
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

    def __getitem__(self, index: NDArray[np.int64]) -> "Sample":
        return Sample(self.states[index], self.features[index], None if self.success is None else self.success[index])


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """The states of a scene, encoded once for all choices of prompt, alpha and combination."""

    rollouts: Sequence[Trajectory]
    visited: Sample
    """The states of all rollouts, one after the other."""
    around: Sample | None
    """States that `TaskStates.sample` makes, also called "states around the goal"; None if none can be made."""
    goals: Sample | None
    """States that succeed; None if none is known."""
    passed: bool = False
    """Whether the user passed the rollouts. The headline measures are then of them."""

    @property
    def knows_success(self) -> bool:
        """Whether success of made states is known, not only of those of the rollouts."""
        return self.around is not None and self.around.success is not None

    @property
    def groups(self) -> NDArray[np.int64]:
        """The number of the rollout that each visited state is from: int64 (N,)."""
        return np.repeat(np.arange(len(self.rollouts)), [len(rollout) for rollout in self.rollouts])

    @property
    def labelled(self) -> Sample:
        """The states of the headline measures: around the goal, unless rollouts were passed; those with both labels."""
        in_order = [self.visited, self.around] if self.passed else [self.around, self.visited]
        return next((sample for sample in in_order if sample is not None and sample.has_both), self.visited)


def count_states() -> int:
    """Estimate how many states `collect` scores of rollouts that are played here."""
    return 2 * ROLLOUTS * STEPS + AROUND + GOALS


def collect(settings: AuditSettings, scene: Scene, task: TaskStates | None, rollouts: Sequence[Trajectory]) -> Samples:
    """Encode the states that a check looks at: those of the rollouts, and of the task if states can be made."""
    visited = States.concatenate([rollout.states for rollout in rollouts])
    success = _find_success(settings, task, rollouts, visited.rows)
    seen = Sample(visited, scene.features(visited, [len(rollout) for rollout in rollouts]), success)
    rng, around, goals = np.random.default_rng(settings.seed), None, None
    if task is not None:
        made = States(task.sample(AROUND, rng))
        knows_success = task.has_success_fn and settings.labels is None
        around = Sample(made, scene.features(made), task.succeeds(made.rows) if knows_success else None)
        if knows_success and len(made := States(task.goals(GOALS, rng))):
            goals = Sample(made, scene.features(made), np.full(len(made), True))
    if goals is None and success is not None and success.any():
        goals = seen[rng.permutation(np.flatnonzero(success))[:GOALS]]
    return Samples(rollouts=rollouts, visited=seen, around=around, goals=goals, passed=settings.rollouts is not None)


def play_rollouts(settings: AuditSettings, scene: Scene) -> Sequence[Trajectory]:
    """The rollouts that were passed; else of random and of constant actions."""
    env, seed = scene.env, settings.seed
    if settings.rollouts is not None:
        check_states(settings.rollouts, env, scene.view, seed)
        return settings.rollouts
    played = []
    for i in range(2 * ROLLOUTS):
        source, policy = ("constant", constant_actions) if i % 2 else ("random", random_actions)
        act = policy(env.action_space, np.random.default_rng((seed, i)))
        played.append(play(env, scene.view, act, seed=seed + i, steps=STEPS, source=source))
    return played


def _find_success(
    settings: AuditSettings, task: TaskStates | None, rollouts: Sequence[Trajectory], seen: NDArray[Any]
) -> NDArray[np.bool_] | None:
    """Find which states of the rollouts succeed, bool (N,): by labels, the task or the environment."""
    if settings.labels is not None:
        return settings.labels
    if task is not None and task.has_success_fn:
        return task.succeeds(seen)
    if settings.success_fn is not None:
        return settings.success_fn(seen)
    if settings.task is not None and settings.task.success_threshold is None:
        return None  # such as the humanoid without a task, which never succeeds
    success = np.concatenate([rollout.success for rollout in rollouts])
    return None if np.isnan(success).any() else success == 1
