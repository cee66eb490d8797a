"""All rewards of one model that a check needs: those that are compared, those of the landscape, and the controls."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import DependencyNotInstalled

from vlmrm_gym.audit.controls import UNRELATED
from vlmrm_gym.audit.prompts import Column, has_features, load_prompts, state_reward, value_head
from vlmrm_gym.audit.results import Choice
from vlmrm_gym.errors import InputError
from vlmrm_gym.rewards.base import RewardModel
from vlmrm_gym.rewards.clip_options import CLIPFields
from vlmrm_gym.rewards.specification import CLIP, RewardSpec
from vlmrm_gym.rewards.state_reward import StateReward
from vlmrm_gym.rewards.views import CombineViews
from vlmrm_gym.training.spec_fields import spec_settings

if TYPE_CHECKING:
    from vlmrm_gym.cli.check import Check

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Alphas of the landscape, besides those that are compared, if there is a baseline."""
_Key = tuple[str, float]
"""A prompt and an alpha."""


class ModelRewards:
    """The rewards of one model for all prompts and alphas: an image is encoded once for all of them.

    Args:
        command: The settings.
        choices: The combinations with this model; not empty.
        spec: The reward, if it is not of prompts.

    Raises:
        InputError: The model or a prompt cannot be used.
    """

    def __init__(self, command: "Check", choices: Sequence[Choice], spec: RewardSpec | None = None) -> None:
        self.encoder: RewardModel
        if spec is not None:
            self._load_other(spec, choices[0], command.device)
            return
        main, baseline = choices[0], choices[0].baseline
        asked = list(dict.fromkeys((choice.prompt, choice.alpha) for choice in choices))
        alphas = {choice.alpha for choice in choices} | set(ALPHAS if baseline else ())
        self._curves = {f"alpha {alpha:g}": (main.prompt, alpha) for alpha in sorted(alphas)}
        self._controls: dict[str, _Key] = {"an unrelated prompt": (UNRELATED, 0.0)}
        if baseline:
            self._controls["the baseline as the prompt"] = (baseline, 0.0)
        keys = list(dict.fromkeys([*asked, *self._curves.values(), *self._controls.values()]))
        given = {**spec_settings(CLIPFields, command), "model": main.model}
        specs = [
            CLIP(**{**given, "prompt": prompt, "baseline": baseline if alpha else None, "alpha": alpha})
            for prompt, alpha in keys
        ]
        compared = {prompt for prompt, _ in asked} | ({baseline} if any(alpha for _, alpha in asked) else set())
        others = {prompt for prompt in (UNRELATED, baseline) if prompt and prompt not in compared}
        self.encoder, heads = load_prompts(specs, command.device, others)
        self._heads = dict(zip(keys, heads, strict=True))
        black = np.zeros((1, 224, 224, 3), dtype=np.uint8)
        try:
            with warnings.catch_warnings():  # of a scene that the model does not know
                warnings.simplefilter("ignore", UserWarning)
                # Not `self.encoder`: it warns once, and that should be of the environment's frames.
                self.black = StateReward(specs[0].build(command.device), 1, return_features=True).features(black)
                """The features of a black frame, float32 (1, 1, D)."""
        except RuntimeError as error:  # it overflows in this precision
            raise InputError(str(error)) from error

    @property
    def weights(self) -> str:
        """The model's name and the digest of its weights."""
        model = getattr(self.encoder, "model", None)
        return f"{model.name}, SHA-256 {model.digest}" if hasattr(model, "digest") else "not known"

    def _load_other(self, spec: RewardSpec, choice: Choice, device: str) -> None:
        """Load a reward that is not of prompts: one line, and no controls of its own."""
        try:
            model = spec.build(device)
            if getattr(model, "clip_length", 1) > 1:
                raise InputError("`reward` must be of single frames to be checked. Received one of clips.")
            reward = state_reward(model)
            self.black = reward.features(np.zeros((1, 224, 224, 3), dtype=np.uint8))
        except (DependencyNotInstalled, OSError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(str(error)) from error
        head: Any = copy.deepcopy(getattr(model, "head")) if has_features(model) else value_head  # noqa: B009
        key = (choice.prompt, choice.alpha)
        self.encoder, self._heads = model, {key: head.cpu() if hasattr(head, "cpu") else head}
        self._curves, self._controls = {choice.prompt: key}, {}

    def column(self, choice: Choice, num_views: int) -> Column:
        """The reward of a combination."""
        return self._column((choice.prompt, choice.alpha), choice, num_views)

    def curves(self, choice: Choice, num_views: int) -> Mapping[str, Column]:
        """The lines of the landscape: the first prompt with each alpha."""
        return {label: self._column(key, choice, num_views) for label, key in self._curves.items()}

    def controls(self, choice: Choice, num_views: int) -> Mapping[str, Column]:
        """The rewards of prompts that say nothing of the task."""
        return {name: self._column(key, choice, num_views) for name, key in self._controls.items()}

    def _column(self, key: _Key, choice: Choice, num_views: int) -> Column:
        combine = None
        if num_views > 1 and choice.combine_views is not None:
            combine = CombineViews(choice.combine_views, num_views)
        return Column(self._heads[key], combine)
