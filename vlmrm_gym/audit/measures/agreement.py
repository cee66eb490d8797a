"""How well a reward agrees with labels of success: AUC and EPIC distance."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.audit.measures.bootstrap import Interval, measure_intervals
from vlmrm_gym.metrics import all_alike, check_labelled


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Agreement of rewards with labels. The measures are None if there is nothing to measure; `problem` says why."""

    problem: str | None
    """Why there are no measures, as a sentence. None if there are."""
    successes: int
    """How many labels are True."""
    failures: int
    """How many are False."""
    auc: Interval | None = None
    """How often a success has a higher reward than a failure, from 0 to 1; chance is 0.5."""
    epic: Interval | None = None
    """EPIC distance to the labels, of rewards of states alone, from 0 to 1; sqrt(1/2) is uncorrelated."""


def measure_agreement(
    reward: ArrayLike,
    success: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Agreement:
    """Compare the rewards of states with labels of success.

    Args:
        reward: float (N,), finite, not empty.
        success: bool (N,).
        groups: int (N,), the rollout that each state is from, if they are from rollouts: see `measure_intervals`.
        resamples: Of the intervals: see `measure_intervals`.
        seed: Of the intervals: see `measure_intervals`.

    Returns:
        Without measures and with a `problem` if the labels are all the same, or the rewards all alike.

    Raises:
        ValueError: Shapes or types differ from those above, or a reward is not finite.
    """
    rewards, successes = check_labelled(reward, success)
    count = int(successes.sum())
    if problem := _problem(rewards, successes):
        return Agreement(problem=problem, successes=count, failures=len(successes) - count)
    auc, epic = measure_intervals(rewards, successes, groups=groups, resamples=resamples, seed=seed)
    return Agreement(problem=None, successes=count, failures=len(successes) - count, auc=auc, epic=epic)


def _problem(rewards: NDArray[np.float64], successes: NDArray[np.bool_]) -> str | None:
    if successes.all() or not successes.any():
        outcome, other = ("successes", "failures") if successes.all() else ("failures", "successes")
        return f"All {len(successes)} states are {outcome}: without {other} there is nothing to compare them with."
    if all_alike(rewards):
        return f"All {len(rewards)} rewards are alike ({rewards[0]:g}): they do not separate successes from failures."
    return None
