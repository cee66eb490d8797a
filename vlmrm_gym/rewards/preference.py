"""Preference: a reward that is learned from comparisons. Imports no torch."""

from dataclasses import dataclass, field

from vlmrm_gym.rewards.base import RewardModel
from vlmrm_gym.rewards.clip_options import check_count
from vlmrm_gym.rewards.learned import LearnedFields


@dataclass(frozen=True, kw_only=True)
class Preference(LearnedFields):
    """A reward learned from comparisons: which of two states, or segments, is closer to the goal (RL-VLM-F, PEBBLE).

    An ensemble of small networks on the features of a frozen image tower, of all views of a state together. Labelers
    answer the comparisons (`vlmrm_gym.preferences`), while an agent learns: `vlmrm_gym.sb3.PreferenceCallback`. Until
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

    ensemble: int = field(default=3, metadata={"check": check_count})
    """Number of networks. The reward is their mean; where they disagree, answers are worth most."""
    hidden_size: int = field(default=64, metadata={"check": check_count})
    """Width of the two hidden layers of each network."""
    kind: str = field(default="preference", init=False)

    def build(self, device: str = "auto") -> RewardModel:
        """Load the image tower, and the head if there is one.

        Raises:
            ValueError: Unknown model or device; or the file is no head, or one of other features.
            FileNotFoundError: The checkpoint, or the file of the head, does not exist.
            RuntimeError: The weights cannot be downloaded.
        """
        from vlmrm_gym.rewards.preference_model import PreferenceHead
        from vlmrm_gym.rewards.saved_heads import HeadReward

        head = None if self.head is None else PreferenceHead.load(self.head)
        return HeadReward(**self.encoder, device=device, head=head)
