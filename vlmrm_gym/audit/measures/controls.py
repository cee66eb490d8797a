"""Controls: rewards that should be at chance. If one does as well as the measured reward, its AUC means little."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

SIGNIFICANCE = 0.05
"""How often, at most, chance alone makes any of the controls of a reward count."""


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
