"""Agreement of a reward with success labels, or with another reward. Independent of models and environments."""

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
    rewards, successes = _with_both_classes(reward, success)
    _, rank, count = np.unique(rewards, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(count) - (count - 1) / 2  # of tied rewards, from 1
    positives, negatives = successes.sum(), (~successes).sum()
    return float((mean_rank[rank][successes].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def epic_distance(reward: ArrayLike, success: ArrayLike) -> float:
    """EPIC distance of a reward to 0/1 success labels (VLM-RM, arXiv 2310.12921, appendix A).

    For rewards of states alone it is sqrt((1 - Pearson correlation) / 2), which ignores their scale and offset.

    Args:
        reward: float (N,), not all alike.
        success: bool (N,), with both True and False.

    Returns:
        From 0 (equal up to scale and offset) to 1 (opposite).

    Raises:
        ValueError: Lengths differ, a reward is not finite, `success` is constant, or the rewards are all alike.
    """
    return pearson_distance(*_with_both_classes(reward, success))


def pearson_distance(first: ArrayLike, second: ArrayLike) -> float:
    """sqrt((1 - Pearson correlation) / 2) of two rewards (Gleave et al. 2021, arXiv 2006.13900, section 4).

    Computed as half the distance between the two after each is centred and scaled to length 1, which is the same and
    is exact near 0.

    Args:
        first: float, any shape, not all alike.
        second: float or bool, the same shape, not all alike.

    Returns:
        From 0 (equal up to scale and offset) over sqrt(1/2) (uncorrelated) to 1 (opposite).

    Raises:
        ValueError: Shapes differ, numbers are not finite, or the entries of `first` or of `second` are all alike.
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if x.shape != y.shape or x.size == 0:
        raise ValueError(
            f"`first` and `second` must have the same shape, and not be empty. Received {x.shape} and {y.shape}."
        )
    return float(min(np.linalg.norm(_direction("first", x) - _direction("second", y)) / 2, 1.0))


def all_alike(values: ArrayLike) -> bool:
    """Whether numbers differ by at most a billionth of the largest magnitude: no more than by rounding.

    Args:
        values: float, any shape, finite, not empty.
    """
    array = np.asarray(values, dtype=np.float64)
    return bool(np.ptp(array) <= 1e-9 * np.abs(array).max())


def check_labelled(reward: ArrayLike, success: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Rewards, float64 (N,), and labels, bool (N,), as arrays.

    Raises:
        ValueError: There are none, lengths differ, labels are not bool, or a reward is not finite.
    """
    rewards, successes = np.asarray(reward, dtype=np.float64), np.asarray(success)
    if rewards.ndim != 1 or not len(rewards) or rewards.shape != successes.shape or successes.dtype != bool:
        raise ValueError(
            "`reward` must be numbers (N,) and `success` bool (N,), with N at least 1. "
            f"Received shapes {rewards.shape} and {successes.shape}, and {successes.dtype} as success."
        )
    _check_finite("reward", rewards)
    return rewards, successes


def _with_both_classes(reward: ArrayLike, success: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    rewards, successes = check_labelled(reward, success)
    if successes.all() or not successes.any():
        raise ValueError(f"`success` must have both True and False. Received {len(successes)} times the same.")
    return rewards, successes


def _direction(name: str, values: np.ndarray) -> np.ndarray:
    """Centred and scaled to length 1: the dot product of two such vectors is their Pearson correlation."""
    _check_finite(name, values)
    if all_alike(values):
        raise ValueError(
            f"`{name}` must have different numbers: a constant has no correlation. Received {values.flat[0]:g}."
        )
    deviations = values - values.mean()
    return deviations / np.linalg.norm(deviations)


def _check_finite(name: str, array: np.ndarray) -> None:
    wrong = np.argwhere(~np.isfinite(array))
    if len(wrong):
        index = tuple(map(int, wrong[0]))
        raise ValueError(f"`{name}` must be finite. Received {array[index]} at {index}, and {len(wrong)} such in all.")
