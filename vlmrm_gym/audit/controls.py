"""Controls: rewards that should be at chance. If one does as well as the checked reward, its AUC means little."""

from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.audit.results import Control
from vlmrm_gym.audit.rewards import RewardView
from vlmrm_gym.audit.samples import Samples
from vlmrm_gym.metrics import auc
from vlmrm_gym.rewards.heads import Features

SIGNIFICANCE = 0.05
"""How often, at most, chance alone makes any of the controls of a reward count."""


def measure_controls(
    samples: Samples, reward: RewardView, prompts: Mapping[str, RewardView], black: Features
) -> Sequence[Control]:
    """Measure the controls of one reward. Empty if it is not known which states succeed, or if all are alike in that.

    Args:
        samples: The states.
        reward: The reward that is checked.
        prompts: The rewards of other prompts, by what they are called.
        black: The features of a black frame from every camera, float32 (1, V, D).
    """
    labelled, visited = samples.labelled, samples.visited
    if labelled.success is None or not labelled.has_both:
        return []
    success, rewards = labelled.success, reward(labelled.features)
    groups = samples.groups if labelled is visited else np.arange(len(labelled))
    unmoving = visited.has_both
    comparisons = len(prompts) + 1 + unmoving
    limit = chance_limit(success, groups, comparisons)
    controls = [
        Control(
            name=name,
            auc=auc(other(labelled.features), success),
            chance=limit,
            explanation="An unrelated prompt should not separate successes from failures this well.",
        )
        for name, other in prompts.items()
    ]
    controls.append(
        Control(
            name="successes replaced by a black frame",
            auc=auc(np.where(success, reward(black)[0], rewards), success),
            chance=limit,
            explanation="A black frame should not score above failures as reliably as a success does.",
        )
    )
    if unmoving:
        assert visited.success is not None
        controls.append(
            Control(
                name="rollouts frozen at their first frame",
                auc=auc(reward(samples.first)[samples.groups], visited.success),
                chance=chance_limit(visited.success, samples.groups, comparisons),
                explanation="Frozen frames should carry no information about when a rollout succeeds.",
            )
        )
    return controls


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
