"""The rewards that an audit compares: frames are encoded once for all that share an encoder; each is a head.

A reward without features is measured by its values, which take the place of features.
"""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from vlmrm_gym.errors import InputError, as_input_error
from vlmrm_gym.rewards import RewardModel
from vlmrm_gym.rewards.clip import CLIP
from vlmrm_gym.rewards.heads import CombineViews, Features, Head, apply_head
from vlmrm_gym.rewards.specification import RewardSpec
from vlmrm_gym.rewards.state_reward import StateReward
from vlmrm_gym.terminal import said_warnings

if TYPE_CHECKING:
    import torch

UNRELATED = "a bowl of fruit on a wooden table"
"""A prompt that has nothing to do with any environment."""
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Alphas of the landscape, besides that of the reward, if there is a baseline."""


@dataclass(frozen=True)
class RewardView:
    """A reward of features: a head, and how the rewards of the views are combined."""

    head: Head
    combine: CombineViews | None = None
    """None: "min"."""

    def __call__(self, features: Features) -> NDArray[np.float64]:
        """The rewards of N states, features float32 (N, V, D): float64 (N,)."""
        count, views, size = features.shape
        rewards = apply_head(self.head, features.reshape(-1, 1, size)).reshape(count, views)
        if self.combine is None:
            return rewards.min(axis=1).astype(np.float64)
        return self.combine(rewards).astype(np.float64)


class EncodedRewards:
    """Rewards that share an encoder, and their heads. What loading them warns of is printed, once.

    Args:
        specs: The rewards that are compared, with one `encoder_key`.
        device: Where the model runs.

    Raises:
        InputError: A reward cannot be loaded, a text is too long, or a reward is of clips or has no head yet.
    """

    def __init__(self, specs: Sequence[RewardSpec], device: str) -> None:
        beside = [*alpha_curves(specs[0]).values(), *(one for spec in specs for one in control_rewards(spec).values())]
        more = [spec for spec in beside if spec not in specs]
        with as_input_error(DependencyNotInstalled, OSError, RuntimeError, TypeError), said_warnings():
            models = [spec.build(device) for spec in specs]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                models += [spec.build(device) for spec in more]
        if getattr(models[0], "clip_length", 1) > 1:
            raise InputError("`reward` must be of single frames to be checked. Received one of clips.")
        if hasattr(models[0], "encode") and getattr(models[0], "head", None) is None:
            raise InputError("`reward` must have a head to be checked. Received one that has none yet. Fit it first.")
        self.encoder = models[0]
        self._heads = list(zip([*specs, *more], map(_head, models), strict=True))

    @property
    def is_ordered(self) -> bool:
        """Whether the reward of a state depends on those of its episode before it."""
        return bool(getattr(self.encoder, "ordered", False))

    @property
    def weights(self) -> str:
        """The model's name and the digest of its weights, where they are known."""
        model: Any = getattr(self.encoder, "model", None)
        return f"{model.name}, SHA-256 {model.digest}" if hasattr(model, "digest") else "not known"

    def view(self, spec: RewardSpec, combine_views: str | None, num_views: int) -> RewardView:
        """One of the rewards, with its combination of views; None for one view.

        A reward that sees all views at once combines them itself.
        """
        joint = combine_views is None or getattr(self.encoder, "multi_view", False)
        combine = None if joint else CombineViews(str(combine_views), num_views)
        return RewardView(next(head for own, head in self._heads if own == spec), combine)


def encoder_key(spec: RewardSpec) -> object:
    """Equal for rewards that share an encoder: those of prompts by one model. Any other one has its own."""
    return (spec.model, spec.precision, spec.resize_mode, spec.batch_size) if isinstance(spec, CLIP) else id(spec)


def alpha_curves(spec: RewardSpec) -> dict[str, RewardSpec]:
    """The lines of the landscape, by their labels: a reward with a baseline for several alphas, any other as it is."""
    if not isinstance(spec, CLIP) or spec.baseline is None:
        return {"reward": spec}
    return {f"alpha {alpha:g}": replace(spec, alpha=alpha) for alpha in sorted({spec.alpha, *ALPHAS})}


def control_rewards(spec: RewardSpec) -> dict[str, RewardSpec]:
    """Rewards of prompts that say nothing of the task, by what they are called; none for a reward without prompts."""
    if not isinstance(spec, CLIP):
        return {}
    texts = {"an unrelated prompt": UNRELATED, "the baseline as the prompt": spec.baseline}
    return {
        name: replace(spec, prompt=text, baseline=None, alpha=0.0) for name, text in texts.items() if text is not None
    }


def _head(model: RewardModel) -> Head:
    head: Any = copy.deepcopy(getattr(model, "head")) if has_features(model) else value_head  # noqa: B009
    return head.cpu() if hasattr(head, "cpu") else head


def has_features(model: RewardModel) -> bool:
    """Whether a model has features of single views, and a head of them."""
    return getattr(model, "head", None) is not None and not getattr(model, "multi_view", False)


def value_head(features: "torch.Tensor") -> "torch.Tensor":
    """The head of a reward that is measured by its values: see `state_reward`."""
    return features.flatten()


class _Values(StateReward):
    """A reward whose features are its values, float32 (B, V, 1), or (B, 1, 1) if it sees all views at once."""

    def features(self, frames: NDArray[np.uint8]) -> Features:
        if self._is_joint or self.info.sees_states:
            return self(frames)[:, None, None]
        views, single = self._split(frames)
        return np.asarray(self._model(single), dtype=np.float32).reshape(len(frames), views, 1)


def state_reward(model: RewardModel, num_views: int = 1) -> StateReward:
    """What makes the features of states, or values in their place if the model has no features of single views."""
    return StateReward(model, num_views, return_features=True) if has_features(model) else _Values(model, num_views)
