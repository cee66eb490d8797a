"""Several prompts of one model: frames are encoded once for all of them, and each is a head of the features."""

import sys
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from vlmrm_gym.errors import InputError
from vlmrm_gym.rewards import RewardModel
from vlmrm_gym.rewards.heads import Features, Head, apply_head
from vlmrm_gym.rewards.specification import CLIP
from vlmrm_gym.rewards.state_reward import StateReward
from vlmrm_gym.rewards.views import CombineViews
from vlmrm_gym.scoring.backends import make_scoring_queue
from vlmrm_gym.scoring.queue import ScoringQueue
from vlmrm_gym.scoring.scorer import MakeRenderer
from vlmrm_gym.terminal import say

if TYPE_CHECKING:
    import torch

    from vlmrm_gym.rewards.clip import CLIPReward


@dataclass(frozen=True)
class Column:
    """One of the rewards that are looked at: a head, and how the rewards of the views are combined."""

    head: Head
    combine: CombineViews | None = None
    """None: "min". A randomly drawn view counts with its expectation, the mean."""

    def of_views(self, features: Features) -> NDArray[np.float32]:
        """The rewards of the views of N states, features float32 (N, V, D): float32 (N, V)."""
        count, views, size = features.shape
        return apply_head(self.head, features.reshape(-1, 1, size)).reshape(count, views)

    def __call__(self, features: Features) -> NDArray[np.float64]:
        """The rewards of N states, features float32 (N, V, D): float64 (N,)."""
        rewards = self.of_views(features)
        if self.combine is None:
            return rewards.min(axis=1).astype(np.float64)
        return (rewards.mean(axis=1) if self.combine.is_random else self.combine(rewards)).astype(np.float64)


def load_prompts(
    specs: Sequence[CLIP], device: str, unwarned: Collection[str] = ()
) -> "tuple[CLIPReward, Sequence[Head]]":
    """Load the model and encode the texts; print what it warns of, once.

    Args:
        specs: The rewards, of one model.
        device: Where the model runs.
        unwarned: Prompts whose warnings are not printed.

    Returns:
        What encodes frames for all of the rewards, and the head of each, on the CPU.

    Raises:
        InputError: The model cannot be loaded, a text is too long, or the features of two rewards differ.
    """
    towers = {(spec.model, spec.precision, spec.resize_mode, spec.batch_size) for spec in specs}
    if len(towers) != 1:
        raise InputError(
            "`specs` must have one `model`, `precision`, `resize_mode` and `batch_size`. "
            f"Received {sorted(towers, key=repr)}. Load those of each model for themselves."
        )
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UserWarning)
            rewards = [cast("CLIPReward", spec.build(device)) for spec in specs]
    except (DependencyNotInstalled, OSError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(str(error)) from error
    for message in dict.fromkeys(str(warning.message) for warning in warned):
        if not any(repr(prompt) in message for prompt in unwarned):
            say(message, error=True)
    return rewards[0], [reward.head.cpu() for reward in rewards]


def has_features(model: RewardModel) -> bool:
    """Whether a model has features of single views, and a head of them."""
    return getattr(model, "head", None) is not None and not getattr(model, "multi_view", False)


def value_head(features: "torch.Tensor") -> "torch.Tensor":
    """The head of a reward that is looked at by its values: see `open_queue`."""
    return features.flatten()


class _Values(StateReward):
    """A reward whose features are its values, float32 (B, V, 1), or (B, 1, 1) if it sees all views at once."""

    def features(self, frames: NDArray[np.uint8]) -> Features:
        if self._is_joint:
            return self(frames)[:, None, None]
        views, single = self._split(frames)
        return np.asarray(self._model(single), dtype=np.float32).reshape(len(frames), views, 1)


def state_reward(model: RewardModel, num_views: int = 1) -> StateReward:
    """What makes the features of states, or values in their place if the model has no features of single views."""
    return StateReward(model, num_views, return_features=True) if has_features(model) else _Values(model, num_views)


def open_queue(encoder: RewardModel, make_renderer: MakeRenderer, num_views: int = 1) -> ScoringQueue:
    """A queue that makes features in this process.

    Args:
        encoder: The loaded model. If it has no features of single views, its values are made in their place.
        make_renderer: Makes the renderer from a model's `render_size`.
        num_views: Number of views of a state.
    """
    reward = state_reward(encoder, num_views)
    return make_scoring_queue(
        lambda device: reward,
        make_renderer,
        num_workers=0,
        devices=None,
        device="cpu",  # that of the loaded model counts
        max_pending_bytes=sys.maxsize,  # who asks for features has all states in memory
    )
