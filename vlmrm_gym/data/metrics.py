"""Agreement of a reward with success labels. Independent of models and environments."""

import numpy as np
from numpy.typing import ArrayLike


def auc(reward: ArrayLike, success: ArrayLike) -> float:
    """Area under the ROC curve: the probability that a success gets a higher reward than a failure; ties count half.

    Args:
        reward: float (N,).
        success: bool (N,), with both True and False.

    Returns:
        From 0 (reversed) over 0.5 (chance) to 1.

    Raises:
        ValueError: Lengths differ, a reward is not finite, or `success` is constant.
    """
    rewards, successes = check_labelled(reward, success, both=True)
    positives, negatives = successes.sum(), (~successes).sum()
    return float((mean_ranks(rewards)[successes].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def mean_ranks(values: np.ndarray) -> np.ndarray:
    """Rank numbers (N,) from 1, float64 (N,); ties get their mean rank."""
    _, rank, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[rank]


def epic_distance(reward: ArrayLike, success: ArrayLike) -> float:
    """EPIC distance of a reward to 0/1 success labels (VLM-RM, arXiv 2310.12921, appendix A).

    For rewards of states alone it is sqrt((1 - Pearson correlation) / 2), which ignores their scale and offset
    (Gleave et al. 2021, arXiv 2006.13900, section 4). Computed as half the distance between the two after each is
    centred and scaled to length 1, which is the same and is exact near 0.

    Args:
        reward: float (N,), not all alike.
        success: bool (N,), with both True and False.

    Returns:
        From 0 (equal up to scale and offset) over sqrt(1/2) (uncorrelated) to 1 (opposite).

    Raises:
        ValueError: Lengths differ, a reward is not finite, `success` is constant, or the rewards are all alike.
    """
    rewards, successes = check_labelled(reward, success, both=True)
    if all_alike(rewards):
        raise ValueError(
            f"`reward` must have different numbers: a constant has no correlation. Received {rewards[0]:g}."
        )
    deviations = [array - array.mean() for array in (rewards, successes.astype(np.float64))]
    first, second = (array / np.linalg.norm(array) for array in deviations)
    return float(min(np.linalg.norm(first - second) / 2, 1.0))


def best_threshold(reward: ArrayLike, success: ArrayLike) -> float:
    """Choose the threshold that tells successes from failures best: the fewest misses and false positives, as shares.

    It lies in the middle between two rewards, of equally good ones the widest apart (Youden's index). Raises as `auc`.
    """
    rewards, successes = check_labelled(reward, success, both=True)
    levels = np.unique(rewards)
    gaps = np.diff(levels, prepend=levels[0])
    thresholds = levels - gaps / 2
    errors = np.array([sum(threshold_errors(rewards, successes, one)) for one in thresholds])
    best = np.flatnonzero(errors <= errors.min() + 1e-12)
    return float(thresholds[best[gaps[best].argmax()]])


def threshold_errors(rewards: np.ndarray, successes: np.ndarray, threshold: float) -> tuple[float, float]:
    """Measure false positives, the share of failures with at least the threshold, and misses, of successes below it."""
    high = rewards >= threshold
    return float(high[~successes].mean()), float(1 - high[successes].mean())


def all_alike(values: ArrayLike) -> bool:
    """Tell whether finite numbers differ by at most a billionth of the largest magnitude: no more than by rounding."""
    array = np.asarray(values, dtype=np.float64)
    return bool(np.ptp(array) <= 1e-9 * np.abs(array).max())


def check_labelled(reward: ArrayLike, success: ArrayLike, *, both: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Convert rewards to float64 (N,), finite, and success labels to bool (N,), of which `both` may be needed."""
    rewards, successes = np.asarray(reward, dtype=np.float64), np.asarray(success)
    if rewards.ndim != 1 or not len(rewards) or rewards.shape != successes.shape or successes.dtype != bool:
        raise ValueError(
            "`reward` must be numbers (N,) and `success` bool (N,), with N at least 1. "
            f"Received shapes {rewards.shape} and {successes.shape}, and {successes.dtype} as success."
        )
    if len(wrong := np.flatnonzero(~np.isfinite(rewards))):
        received = f"{rewards[wrong[0]]} at {wrong[0]}, and {len(wrong)} such in all"
        raise ValueError(f"`reward` must be finite. Received {received}.")
    if both and successes.all() == successes.any():
        raise ValueError(f"`success` must have both True and False. Received {len(successes)} times the same.")
    return rewards, successes
