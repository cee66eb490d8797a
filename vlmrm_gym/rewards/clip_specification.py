"""`CLIP`, the specification of CLIP rewards. Imports no torch."""

from dataclasses import dataclass, field

from vlmrm_gym.rewards.base import RewardModel
from vlmrm_gym.rewards.clip_options import CLIPFields


@dataclass(frozen=True, kw_only=True)
class CLIP(CLIPFields):
    """How well a frame matches a prompt, by a vision-language model (VLM-RM, arXiv 2310.12921).

    >>> import vlmrm_gym
    >>> vlmrm_gym.CLIP(prompt="an upright pole", baseline="a pole", alpha=0.5, model="tiny").alpha
    0.5

    Raises:
        TypeError: A prompt or model name is not a string.
        ValueError: A value is out of its range; the message names the field.
    """

    kind: str = field(default="clip", init=False)

    def build(self, device: str = "auto") -> RewardModel:
        """Load the model.

        Raises:
            ValueError: Unknown model or device, or a prompt longer than the model's context.
            FileNotFoundError: The checkpoint does not exist.
            RuntimeError: The weights cannot be downloaded.
        """
        from vlmrm_gym.rewards.clip import CLIPReward

        return CLIPReward(device=device, **self.settings())
