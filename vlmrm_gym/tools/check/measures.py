"""Measures how well a reward agrees with success labels: AUC and EPIC distance with bootstrap intervals.

Intervals are percentiles over resamples with replacement (Efron 1979). Rows of one rollout resemble each other, and an
interval that takes them for independent is too narrow: pass `groups`, and whole rollouts are drawn. An interval from
few successes is too narrow as well; where successes and failures are separated perfectly, AUC is 1 in every resample.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.data.metrics import all_alike, auc, check_labelled, epic_distance

LEVEL = 0.95
"""Fraction of the resamples that an interval holds."""
SIGNIFICANCE = 0.05
"""How often, at most, chance alone makes any of the controls of a reward count."""


@dataclass(frozen=True)
class Interval:
    """A measure of the rows as they are, and the percentiles over resamples that are its interval, see `LEVEL`."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Agreement of rewards with labels. The measures are None if there is nothing to measure; `problem` says why."""

    problem: str | None
    successes: int
    failures: int
    auc: Interval | None = None
    """How often a success has a higher reward than a failure, from 0 to 1; chance is 0.5."""
    epic: Interval | None = None
    """EPIC distance to the labels, of rewards of states alone, from 0 to 1; sqrt(1/2) is uncorrelated."""


def measure_agreement(
    reward: ArrayLike,
    success: ArrayLike,
    *,
    groups: NDArray[np.int64] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Agreement:
    """Compare the rewards of states with labels of success, by bootstrap resamples.

    Rewards are float (N,), finite, not empty; labels bool (N,). Rows of one number in `groups`, int (N,), those of a
    rollout, are drawn together; None: every row for itself. Every resample has as many groups as the original with
    successes only, with failures only, and with both.
    """
    rewards, successes = check_labelled(reward, success)
    count = int(successes.sum())
    result = Agreement(problem=_problem(rewards, successes), successes=count, failures=len(successes) - count)
    if result.problem:
        return result
    levels, level = np.unique(rewards, return_inverse=True)
    measured = [
        _measure(levels, *(np.bincount(level, counts * own, len(levels)) for own in (successes, ~successes)))
        for counts in _draw(successes, np.arange(len(successes)) if groups is None else groups, resamples, seed)
    ]
    bounds = np.quantile(measured, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0).T.tolist()
    values = auc(rewards, successes), epic_distance(rewards, successes)
    of_auc, of_epic = (Interval(value, low, high) for value, (low, high) in zip(values, bounds, strict=True))
    return replace(result, auc=of_auc, epic=of_epic)


def _measure(levels: NDArray[Any], successes: NDArray[Any], failures: NDArray[Any]) -> tuple[float, float]:
    """AUC and EPIC distance of the rewards `levels`, ascending; each is that of so many states: float64 (L,).

    As of `auc` and `epic_distance`, without sorting. Rewards that are all alike are uncorrelated.
    """
    won, lost, states = successes.sum(), failures.sum(), successes + failures
    area = successes @ (failures.cumsum() - failures / 2) / (won * lost)
    if all_alike(levels[states > 0]):
        return area, np.sqrt(0.5)
    deviations = levels - states @ levels / states.sum()
    correlation = successes @ deviations / np.sqrt(states @ deviations**2 * won * lost / states.sum())
    return area, np.sqrt(max(1 - correlation, 0.0) / 2)


def _problem(rewards: NDArray[np.float64], successes: NDArray[np.bool_]) -> str | None:
    if successes.all() or not successes.any():
        outcome, other = ("successes", "failures") if successes.all() else ("failures", "successes")
        return f"All {len(successes)} states are {outcome}: without {other} there is nothing to compare them with."
    if all_alike(rewards):
        return f"All {len(rewards)} rewards are alike ({rewards[0]:g}): they do not separate successes from failures."
    return None


def _draw(
    labels: NDArray[np.bool_], groups: NDArray[np.int64], resamples: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    """Yield how often each resample has each row: int64 (N,)."""
    rng = np.random.default_rng(seed)
    _, group = np.unique(groups, return_inverse=True)
    kinds = 2 * (np.bincount(group, labels) > 0) + (np.bincount(group, ~labels) > 0)  # which labels a group has
    strata = [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]
    drawn = [rng.choice(stratum, (resamples, len(stratum))) for stratum in strata]
    for row in np.concatenate(drawn, axis=1):
        yield np.bincount(row, minlength=len(kinds))[group]


@dataclass(frozen=True, kw_only=True)
class Control:
    """The AUC of a reward that should be at chance."""

    name: str
    auc: float
    """0.5 if its rewards are all alike."""
    chance: float
    """The highest AUC that chance explains, given how few the states are: see `chance_limit`."""


def best_control(controls: Sequence[Control]) -> float | None:
    """The highest AUC of the controls that chance does not explain; 0.5 if it explains all, None without controls."""
    if not controls:
        return None
    return max((control.auc for control in controls if control.auc > control.chance), default=0.5)


def chance_limit(success: NDArray[np.bool_], groups: NDArray[np.int64], comparisons: int) -> float:
    """The AUC that a reward without any relation to success exceeds by chance, once in comparisons / `SIGNIFICANCE`.

    By the normal approximation of the Mann-Whitney statistic, whose variance is (m + n + 1) / (12 m n) for m successes
    and n failures, with Bonferroni's correction. States of one rollout, those of one number in `groups`, int64 (N,),
    are alike, and count as one. Above 1 if there are too few states to tell.
    """
    m, n = (len(np.unique(groups[of_class])) for of_class in (success, ~success))
    deviation = float(np.sqrt((m + n + 1) / (12 * m * n)))
    return 0.5 + NormalDist().inv_cdf(1 - SIGNIFICANCE / comparisons) * deviation
