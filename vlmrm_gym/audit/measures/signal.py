"""What there is to learn from in the rewards that untrained behaviour sees: range, noise, and the way to the goal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.metrics import all_alike


@dataclass(frozen=True, kw_only=True)
class Signal:
    """Range and noise of rewards along rollouts, and how far they stay below the goal's."""

    problem: str | None
    """Why `gap` is None, as a sentence. None if it is a number."""
    low: float
    """The lowest reward of the rollouts."""
    high: float
    """The highest."""
    goal: float
    """The median reward of the goal states."""
    noise: float
    """Mean absolute change from step to step, divided by `high - low`; 0 if the rewards are all alike.

    From 0 to 1. A reward that rises steadily over T steps has 1 / (T - 1), independent uniform rewards 1/3 of their
    range, one that jumps between two values at every step 1.
    """
    gap: float | None
    """How much of the way to the goal's reward untrained behaviour leaves: (goal - high) / (highest - lowest), over the
    rewards of the rollouts and the goal's together. From -1 to 1.

    1: all rewards of the rollouts are alike and the goal's is higher. There is nothing to climb: no step that the
    rollouts took changes the reward. 0: their best state gets the goal's reward. Below 0: it gets more than the goal.
    """


def measure_signal(rewards: NDArray[Any] | Sequence[ArrayLike], goal: ArrayLike) -> Signal:
    """Compare the rewards along rollouts of untrained behaviour with the reward of the goal.

    Args:
        rewards: float (N, T), finite, T at least 2: N rollouts of T steps, of random and of constant actions (one
            action for a whole rollout). Or N arrays (T,) of different lengths.
        goal: float (G,) or a number, finite: rewards of states that reach the goal.

    Returns:
        With a `problem` if the rewards of the rollouts and the goal's are all alike.
    """
    along = [np.asarray(own, dtype=np.float64) for own in rewards]
    every, changes = np.concatenate(along), np.concatenate([np.diff(own) for own in along])
    low, high, target = float(every.min()), float(every.max()), float(np.median(np.asarray(goal, dtype=np.float64)))
    noise = 0.0 if all_alike(every) else float(np.abs(changes).mean() / (high - low))
    problem, gap = None, None
    if all_alike([low, high, target]):
        problem = f"The rewards along the rollouts and of the goal are all alike ({target:g}): there is no signal."
    else:
        gap = (target - high) / (max(high, target) - min(low, target))
    return Signal(problem=problem, low=low, high=high, goal=target, noise=noise, gap=gap)
