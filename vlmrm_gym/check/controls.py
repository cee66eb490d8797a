"""Rewards that must not agree with a task. If one does as well as the checked reward, the latter's AUC means little."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.check.results import Control
from vlmrm_gym.check.samples import AllRewards, Column, Samples
from vlmrm_gym.metrics import auc

UNRELATED = "a bowl of fruit on a wooden table"
"""A prompt that has nothing to do with any environment."""


def measure_controls(
    samples: Samples, column: Column, prompts: Mapping[str, Column], black: AllRewards
) -> Sequence[Control]:
    """Measure the controls of one reward. Empty if it is not known which states succeed, or if all are alike in that.

    Args:
        samples: The states.
        column: The reward that is checked.
        prompts: The rewards of other prompts, by what they are called.
        black: The rewards of a black frame, float32 (1, V, K).
    """
    judged = samples.judged
    if judged.success is None or judged.success.all() or not judged.success.any():
        return []
    success, rewards = judged.success, column(judged.rewards)
    controls = [
        Control(
            name=name,
            auc=auc(other(judged.rewards), success),
            explanation="A prompt that says nothing of the task must not rank successes above failures as well.",
        )
        for name, other in prompts.items()
    ]
    controls.append(
        Control(
            name="successes replaced by a black frame",
            auc=auc(np.where(success, column(black)[0], rewards), success),
            explanation="A black frame must not be paid more than failures as reliably as a success is.",
        )
    )
    return [*controls, *_frozen(samples, column)]


def _frozen(samples: Samples, column: Column) -> Sequence[Control]:
    """Every frame of a rollout replaced by the rollout's first one."""
    visited = samples.visited
    if visited.success is None or visited.success.all() or not visited.success.any():
        return []
    rewards: NDArray[np.float64] = column(samples.first)[samples.groups]
    return [
        Control(
            name="rollouts frozen at their first frame",
            auc=auc(rewards, visited.success),
            explanation="A frozen picture must not tell when a rollout succeeds.",
        )
    ]
