"""Demonstrations: a reward that is learned from videos of the task being done. Imports no torch."""

import importlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from vlmrm_gym._util.errors import InputError
from vlmrm_gym.rewards.clip import EncoderFields, check_text, one_of
from vlmrm_gym.rewards.model import RewardModel
from vlmrm_gym.rewards.spec import RewardSpec


@dataclass(frozen=True, kw_only=True)
class Demonstrations(EncoderFields, RewardSpec):
    """Pays for progress, as videos of the task show it: no actions, no labels (TimeRewarder, arXiv 2509.26627).

    `vlmrm_gym.fit_demonstrations(videos)`, and `vlmrm-gym fit --videos`, learn from videos how far apart in time two
    frames are. An agent is paid for the distance that a step has covered, so the state before the first action is drawn
    and encoded, too.

    >>> import vlmrm_gym
    >>> reward = vlmrm_gym.TaskReward() + 0.1 * vlmrm_gym.Demonstrations.load("kneeling/")  # doctest: +SKIP

    Raises:
        TypeError: A text is something else.
        ValueError: A value is out of its range; the message names the field.
    """

    head: str = field(metadata={"check": check_text})
    """File of what was learned, `head.safetensors`. It says which model makes the features."""
    measure: Literal["step", "place"] = field(default="step", metadata={"check": one_of(Literal["step", "place"])})
    """"step": what a step has gained; 1 is as much as from one frame of the videos to the next, on average. "place":
    how much of the task is done in a state; 1 is all of it. This one can have a threshold, see `Success`."""
    kind: str = field(default="demonstrations", init=False)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load what `fit_demonstrations` wrote, or `save`. Raises an InputError for anything else."""
        reward = importlib.import_module("vlmrm_gym.rewards.specification").load_reward(folder)  # it imports this file
        if not isinstance(reward, cls):
            raise InputError(f"{folder} must be a reward of the kind {cls.kind!r}. Received {reward.kind!r}.")
        return reward

    def with_model(self, model: str) -> Self:
        """See `RewardSpec`: the file names the model."""
        return self

    def stateless(self) -> RewardSpec:
        """See `RewardSpec`."""
        return replace(self, measure="place")

    def build(self, device: str = "auto") -> RewardModel:
        """Load the network and the model. Raises what `CLIP.build` does, also for the head."""
        model: Any = importlib.import_module("vlmrm_gym.rewards.preference_model")  # by name: it imports torch
        return model.DemonstrationsReward(self, device)
