"""TunedCLIP: a CLIP reward that is tuned to the successes that the environment reports. Imports no torch."""

from dataclasses import dataclass, field
from typing import Any

from vlmrm_gym.rewards.base import RewardModel
from vlmrm_gym.rewards.clip_options import check_count
from vlmrm_gym.rewards.learned import LearnedFields
from vlmrm_gym.validation import is_finite


def _weight(name: str, value: Any) -> float:
    if not is_finite(value) or value <= 0:
        raise ValueError(f"`{name}` must be a finite number above 0. Received {value!r}.")
    return float(value)


@dataclass(frozen=True, kw_only=True)
class TunedCLIP(LearnedFields):
    """How well a frame matches a prompt, tuned to the successes that the environment reports (FuRL, arXiv 2406.00645).

    A small head on the image features and one on the text features, both of a frozen model. The reward is `weight`
    times the cosine similarity of what the heads make of them, the lowest of a state's views. Both heads add to their
    input what a network with one hidden layer makes of it, which is nothing at first: the reward begins as that of
    `CLIP` without a baseline. `vlmrm_gym.sb3.TuningCallback` tunes it while an agent learns. It is meant to be added to
    a sparse reward of the environment, by `task_reward_weight=1`. Vector environments with such a reward return
    features and remember their episodes (`envs.episode_log`) without being asked to.

    With `head`, a file that `TunedHead.save` wrote, it is a frozen reward like any other.

    >>> import vlmrm_gym
    >>> vlmrm_gym.TunedCLIP(prompt="an upright pole").weight
    0.05

    Raises:
        TypeError: A text is something else.
        ValueError: A value is out of its range, or there is neither a prompt nor a head; the message names the field.
    """

    hidden_size: int = field(default=256, metadata={"check": check_count})
    """Width of the hidden layer of each head (FuRL's)."""
    weight: float = field(default=0.05, metadata={"check": _weight})
    """Of the cosine similarity; rho in FuRL, whose task reward has weight 1."""
    kind: str = field(default="tuned_clip", init=False)

    def build(self, device: str = "auto") -> RewardModel:
        """Load the model, and the heads if there are any.

        Raises:
            ValueError: Unknown model or device, or a prompt longer than the model's context; or the file is no head, or
                one of other features.
            FileNotFoundError: The checkpoint, or the file of the head, does not exist.
            RuntimeError: The weights cannot be downloaded.
        """
        from vlmrm_gym.rewards.tuned_clip_model import TunedCLIPReward

        own = {"prompt": self.prompt, "head": self.head, "hidden_size": self.hidden_size, "weight": self.weight}
        return TunedCLIPReward(**self.encoder, device=device, **own)
