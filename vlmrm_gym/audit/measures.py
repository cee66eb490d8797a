"""How well a reward agrees with labels of success: AUC and EPIC distance with bootstrap intervals, and controls.

NumPy in, NumPy out. Intervals are percentiles over resamples with replacement (Efron 1979). Rows that come from one
rollout resemble each other, and an interval that takes them for independent is too narrow: pass `groups`, and whole
rollouts are drawn. An interval from few successes is too narrow as well; where successes and failures are separated
perfectly, AUC is 1 in every resample. Controls are rewards that should be at chance: if one does as well as the
measured reward, its AUC means little.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.metrics import all_alike, auc, check_labelled, epic_distance

LEVEL = 0.95
"""Fraction of the resamples that an interval holds."""
BLOCK = 4_000_000
"""Numbers per array that are worked on at once: 32 MB."""
SIGNIFICANCE = 0.05
"""How often, at most, chance alone makes any of the controls of a reward count."""


@dataclass(frozen=True)
class Interval:
    """A measure, and the percentiles of it over resamples."""

    value: float
    """Of the rows as they are."""
    low: float
    """The percentile (1 - `LEVEL`) / 2."""
    high: float
    """The percentile (1 + `LEVEL`) / 2."""


def measure_intervals(
    reward: ArrayLike,
    success: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[Interval, Interval]:
    """AUC, and the EPIC distance of a reward of states alone to success labels, with bootstrap intervals.

    Every resample has as many groups as the original with successes only, with failures only, and with both. So it has
    successes and failures, and with `groups=None` as many of each. A resample in which the reward is constant counts as
    uncorrelated: its distance is sqrt(1/2).

    Args:
        reward: float (N,), finite, not all alike.
        success: bool (N,), with both True and False.
        groups: int (N,): rows of one number are drawn together. Every row for itself if None.
        resamples: How many.
        seed: The same seed gives the same intervals.

    Returns:
        The values are `vlmrm_gym.metrics.auc` and `vlmrm_gym.metrics.epic_distance`; all from 0 to 1.

    Raises:
        ValueError: What `vlmrm_gym.metrics.epic_distance` refuses; or `groups` are not integers (N,).
    """
    values = auc(reward, success), epic_distance(reward, success)
    rewards, successes = np.asarray(reward, dtype=np.float64), np.asarray(success)
    rows = np.arange(len(successes)) if groups is None else np.asarray(groups)
    if rows.shape != successes.shape or rows.dtype.kind not in "iu":
        raise ValueError(f"`groups` must be integers of shape {successes.shape}. Received {rows.dtype}, {rows.shape}.")
    blocks = [
        [measure(counts, rewards, successes) for measure in (_aucs, _distances)]
        for counts in _draw(successes, rows, resamples, seed)
    ]
    ends = np.quantile(np.concatenate(blocks, axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1).T
    of_auc, of_epic = (Interval(value, *map(float, own)) for value, own in zip(values, ends, strict=True))
    return of_auc, of_epic


def _aucs(
    counts: NDArray[np.float64], rewards: NDArray[np.float64], successes: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """AUC (B,) of rows that were drawn `counts` times, float64 (B, N)."""
    order = np.argsort(rewards, kind="stable")
    first_of_level = np.flatnonzero(np.diff(rewards[order], prepend=-np.inf))
    positives, negatives = (
        np.add.reduceat(counts[:, order] * of_class[order], first_of_level, axis=1)
        for of_class in (successes, ~successes)
    )  # (B, different rewards)
    beaten = np.cumsum(negatives, axis=1) - negatives / 2  # ties count half
    return (positives * beaten).sum(axis=1) / (positives.sum(axis=1) * negatives.sum(axis=1))


def _distances(
    counts: NDArray[np.float64], rewards: NDArray[np.float64], successes: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """EPIC distance (B,) of rows that were drawn `counts` times, float64 (B, N)."""
    x, y = ((array - array.mean()) / array.std() for array in (rewards, successes.astype(np.float64)))
    moments = np.stack([x, y, x * x, y * y, x * y], axis=1)  # (N, 5)
    mean_x, mean_y, xx, yy, xy = (counts @ moments / counts.sum(axis=1, keepdims=True)).T
    variances = (xx - mean_x**2) * (yy - mean_y**2)
    varies = variances > 1e-12
    rho = np.where(varies, xy - mean_x * mean_y, 0) / np.sqrt(np.where(varies, variances, 1))
    return np.sqrt((1 - np.clip(rho, -1, 1)) / 2)


def _draw(labels: NDArray[np.bool_], groups: NDArray, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each row was drawn, float64 (B, N), block by block of resamples."""
    rng = np.random.default_rng(seed)
    _, group = np.unique(groups, return_inverse=True)
    size = group.max() + 1
    kinds = 2 * (np.bincount(group, labels) > 0) + (np.bincount(group, ~labels) > 0)  # which labels a group has
    strata = [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]
    at_once = max(1, BLOCK // len(labels))
    for start in range(0, resamples, at_once):
        block = min(at_once, resamples - start)
        drawn = np.concatenate([rng.choice(stratum, (block, len(stratum))) for stratum in strata], axis=1)
        cells = drawn + size * np.arange(block)[:, None]
        yield np.bincount(cells.ravel(), minlength=block * size).reshape(block, size)[:, group].astype(np.float64)


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
    of_auc, of_epic = measure_intervals(rewards, successes, groups=groups, resamples=resamples, seed=seed)
    return Agreement(problem=None, successes=count, failures=len(successes) - count, auc=of_auc, epic=of_epic)


def _problem(rewards: NDArray[np.float64], successes: NDArray[np.bool_]) -> str | None:
    if successes.all() or not successes.any():
        outcome, other = ("successes", "failures") if successes.all() else ("failures", "successes")
        return f"All {len(successes)} states are {outcome}: without {other} there is nothing to compare them with."
    if all_alike(rewards):
        return f"All {len(rewards)} rewards are alike ({rewards[0]:g}): they do not separate successes from failures."
    return None


@dataclass(frozen=True, kw_only=True)
class Control:
    """The AUC of a reward that should be at chance."""

    name: str
    auc: float
    """0.5 if its rewards are all alike."""
    chance: float
    """The highest AUC that chance explains, given how few the states are: see `chance_limit`."""
    explanation: str
    """What it would mean if this did as well as the reward."""


def best_control(controls: Sequence[Control]) -> float | None:
    """The highest AUC of the controls that chance does not explain; 0.5 if it explains all, None without controls."""
    if not controls:
        return None
    return max((control.auc for control in controls if control.auc > control.chance), default=0.5)


def chance_limit(success: NDArray[np.bool_], groups: NDArray[np.int64], comparisons: int) -> float:
    """The AUC that a reward without any relation to success exceeds by chance, once in comparisons / `SIGNIFICANCE`.

    By the normal approximation of the Mann-Whitney statistic, whose variance is
    (m + n + 1) / (12 m n) for m successes and n failures. States of one rollout are alike, and count as one.

    Args:
        success: bool (N,), with both True and False.
        groups: int64 (N,): states of one number are of one rollout.
        comparisons: How many AUCs are compared with their limits (Bonferroni).

    Returns:
        Above 0.5; above 1 if there are too few states to tell.
    """
    m, n = (len(np.unique(groups[of_class])) for of_class in (success, ~success))
    deviation = float(np.sqrt((m + n + 1) / (12 * m * n)))
    return 0.5 + NormalDist().inv_cdf(1 - SIGNIFICANCE / comparisons) * deviation
