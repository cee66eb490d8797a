"""Preference: a reward that is learned from comparisons. Imports no torch."""

from dataclasses import dataclass, field
from typing import Self

from vlmrm_gym.rewards.clip import EncoderFields, check_count, check_prompt, check_text, optional
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
