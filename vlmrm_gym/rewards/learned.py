"""Rewards that are learned: `Preference` from comparisons, `Demonstrations` from videos. Imports no torch."""

import importlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from vlmrm_gym._util.errors import InputError
from vlmrm_gym.rewards.clip import EncoderFields, check_count, check_prompt, check_text, one_of, optional
from vlmrm_gym.rewards.model import RewardModel
from vlmrm_gym.rewards.spec import RewardSpec

NO_HEAD = (
    "`reward` has no head yet: it is learned in vector environments, with return_features=True. For a reward that "
    "scores at once, pass vlmrm_gym.Preference(head=...), the file of a head that has been learned."
)


@dataclass(frozen=True, kw_only=True)
class Preference(EncoderFields, RewardSpec):
    """A reward learned from comparisons: which of two states, or segments, is closer to the goal (RL-VLM-F, PEBBLE).

    An ensemble of small networks on the features of a frozen image tower, of all views of a state together. Labelers
    answer the comparisons (`vlmrm_gym.learning`), while an agent learns: `vlmrm_gym.sb3.PreferenceCallback`. Until
    there is a first head, rewards are NaN. Vector environments with such a reward return features and remember their
    episodes (`envs.episode_log`) without being asked to.

    With `head`, a file that `PreferenceHead.save` wrote, it is a frozen reward like any other.

    >>> import vlmrm_gym
    >>> vlmrm_gym.Preference(prompt="an upright pole").ensemble
    3

    Raises:
        TypeError: A text is something else.
        ValueError: A value is out of its range, or there is neither a prompt nor a head; the message names the field.
    """

    prompt: str | None = field(default=None, metadata={"check": optional(check_prompt)})
    """The goal. Not needed with a `head`."""
    head: str | None = field(default=None, metadata={"check": optional(check_text)})
    """File of a head that has been learned: the fields that describe the head are then the file's. None: it is
    learned."""
    init: str | None = field(default=None, metadata={"check": optional(check_text)})
    """A reward that was learned from videos, its folder or its head.safetensors, which answers correct: the networks
    learn what to add to the progress that it sees, and it is the head until there are answers. It says which model
    makes the features."""
    ensemble: int = field(default=3, metadata={"check": check_count})
    """Number of networks. The reward is their mean; where they disagree, answers are worth most."""
    hidden_size: int = field(default=64, metadata={"check": check_count})
    """Width of the two hidden layers of each network."""
    kind: str = field(default="preference", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt is None and self.head is None:
            raise ValueError(
                "`prompt` must be a text, or `head` the file of a head that has been learned. Received neither. Say "
                "what the agent should do."
            )

    def with_model(self, model: str) -> Self:
        """See `RewardSpec`."""
        return self if self.init is not None else super().with_model(model)

    @property
    def learns(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the head is yet to be learned: the environments must keep what it is learned from."""
        return self.head is None

    def build(self, device: str = "auto") -> RewardModel:
        """Load the image tower, and the head if there is one. Raises what `CLIP.build` does, also for the head."""
        from vlmrm_gym.rewards.preference_model import HeadReward, PreferenceHead

        fields = self
        if self.init is not None:
            from vlmrm_gym.rewards.distance import DistanceNetwork, with_encoder_of

            fields = with_encoder_of(self.init, DistanceNetwork.load(self.init), self)
        head = None if self.head is None else PreferenceHead.load(self.head)
        return HeadReward(fields, device=device, head=head)


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
        from vlmrm_gym.rewards.distance import DistanceNetwork, PlaceHead, StepHead, with_encoder_of
        from vlmrm_gym.rewards.preference_model import HeadReward

        network = DistanceNetwork.load(self.head)
        fields = with_encoder_of(self.head, network, self)
        network.cnn = None  # the model is it
        head = StepHead(network) if self.measure == "step" else PlaceHead(network)
        return HeadReward(fields, head=head, device=device)
