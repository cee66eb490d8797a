"""How well a reward agrees with a judge that says success or failure. Knows nothing of models or environments."""

import numpy as np
from numpy.typing import ArrayLike


def auc(reward: ArrayLike, success: ArrayLike) -> float:
    """How often a success is rewarded more than a failure; ties count half (area under the ROC curve).

    Args:
        reward: float (N,).
        success: bool (N,), of which some are True and some False.

    Returns:
        From 0 (always the wrong way round) over 0.5 (chance) to 1.

    Raises:
        ValueError: The lengths differ, or all are successes, or none.
    """
    rewards, successes = _checked(reward, success)
    _, place, count = np.unique(rewards, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(count) - (count - 1) / 2  # of equal rewards, from 1
    positives, negatives = successes.sum(), (~successes).sum()
    return float((mean_rank[place][successes].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def epic_distance(reward: ArrayLike, success: ArrayLike) -> float:
    """The EPIC distance of a reward to the 0/1 labels, both functions of the state alone (VLM-RM, appendix A).

    sqrt((1 - Pearson correlation) / 2): it does not depend on the reward's scale and offset.

    Args:
        reward: float (N,), not all equal.
        success: bool (N,), of which some are True and some False.

    Returns:
        From 0 (the same up to scale and offset) to 1 (the opposite).

    Raises:
        ValueError: The lengths differ, or all are successes, or none.
    """
    rewards, successes = _checked(reward, success)
    return float(np.sqrt(np.clip(1 - np.corrcoef(rewards, successes)[0, 1], 0, 2) / 2))


def _checked(reward: ArrayLike, success: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    rewards, successes = np.asarray(reward, dtype=np.float64), np.asarray(success)
    if rewards.ndim != 1 or rewards.shape != successes.shape or successes.dtype != bool:
        raise ValueError(
            "`reward` must be numbers (N,) and `success` bool (N,). "
            f"Received shapes {rewards.shape} and {successes.shape}, and {successes.dtype} as success."
        )
    if successes.all() or not successes.any():
        raise ValueError(f"`success` must have both True and False. Received {len(successes)} times the same.")
    return rewards, successes
