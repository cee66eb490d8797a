"""A greedy climb of the reward from initial states: where does it lead?"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.check.prompts import Column
from vlmrm_gym.check.samples import Samples
from vlmrm_gym.check.scene import Scene
from vlmrm_gym.check.search import search
from vlmrm_gym.envs.states import TaskStates, fails_clearly, mutate
from vlmrm_gym.rendering import States

LINES = 48
"""Lines of descent."""
ROUNDS = 40
"""Rounds of small changes for each unit of effort."""
SCALES = (0.25, 0.75, 1.5)
"""Sizes of the changes, in units of a typical one."""
BEST = 50
"""How many of the highest-reward states a climb is judged by."""


@dataclass(frozen=True)
class Climb:
    """Where a climb led."""

    success: float
    """Fraction of the highest-reward states that succeed, or fail by a near miss only."""
    progress: float
    """How far the highest reward is on the way from the initial states' median to that of successes, at most 1. If
    initial states get the reward of successes: 1."""


def climb(scene: Scene, task: TaskStates, column: Column, samples: Samples, *, effort: int, seed: int) -> Climb | None:
    """Change initial states a little at a time, and keep each change that does not lower the reward.

    An agent, too, begins there, follows the reward, and does not know what succeeds.

    Args:
        scene: Encodes states.
        task: Its states.
        column: The reward.
        samples: Initial states, and successes to compare with.
        effort: The climb scores about 2,000 states times this.
        seed: The same seed gives the same result.

    Returns:
        None if no success is known.
    """
    if not task.has_judge or samples.goals is None:
        return None
    initial = States.concatenate([rollout.initial for rollout in samples.rollouts]).rows
    rng = np.random.default_rng(seed)
    found = search(
        lambda rows: column(scene.features(rows)),
        lambda rows: np.ones(len(rows), dtype=bool),
        _spread(task, initial, rng),
        lambda rows, rng: mutate(task, rows, rng, SCALES),
        rounds=ROUNDS * effort,
        seed=seed,
    )
    start, goal = np.median(column(samples.first)), np.median(column(samples.goals.features))
    return Climb(
        success=1 - float(fails_clearly(task, found.states[:BEST]).mean()),
        progress=1.0 if goal <= start else min(1.0, float((found.scores[0] - start) / (goal - start))),
    )


def _spread(task: TaskStates, initial: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Initial states with small changes: float64 (LINES, S)."""
    chosen = initial[rng.integers(len(initial), size=LINES)]
    return task.perturb(chosen, 0.5 * rng.normal(size=(LINES, task.dimensions)))
