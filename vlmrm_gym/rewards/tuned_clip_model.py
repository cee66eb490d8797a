"""CLIP rewards that are tuned to successes: the head, and the model that scores frames."""

import math
from typing import Any

import torch
import torch.nn.functional as F

from vlmrm_gym.rewards.clip import CLIPReward
from vlmrm_gym.rewards.saved_heads import HeadReward, SavedHead


class TunedHead(SavedHead):
    """Two residual networks, of image features and of the prompt's, and the cosine similarity of what they return.

    FuRL's networks (arXiv 2406.00645) have a hidden layer of 256 units, too, but begin anywhere and end in 64 numbers.
    These begin as the identity, so that the reward is CLIP's until there is something to be learned from.

    Args:
        size: Width of the features, D.
        hidden_size: Width of the hidden layers.
        weight: Of the cosine similarity.
        fingerprint: Of the features; see `RewardModel`.
        prompt: The goal.
        seed: Of the weights.

    Attributes:
        text: The features of the prompt, float32 (D,): a unit vector.
    """

    key = "vlmrm_gym.tuned_head"
    arguments = ("size", "hidden_size", "weight", "fingerprint", "prompt")
    text: torch.Tensor

    def __init__(
        self,
        size: int,
        *,
        hidden_size: int = 256,
        weight: float = 0.05,
        fingerprint: str = "",
        prompt: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.size, self.hidden_size, self.weight = size, hidden_size, weight
        self.fingerprint, self.prompt = fingerprint, prompt
        generator = torch.Generator().manual_seed(seed)
        self._image, self._text = (_make_network(size, hidden_size, generator) for _ in range(2))
        self.register_buffer("text", torch.zeros(size))

    def cosine(self, features: torch.Tensor) -> torch.Tensor:
        """The cosine similarity of states and prompt, of the lowest view: features float32 (..., V, D) to (...)."""
        images, text = features + self._image(features), self.text + self._text(self.text)
        return (F.normalize(images, dim=-1) @ F.normalize(text, dim=-1)).amin(-1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Rewards of states: features float32 (B, V, D) to float32 (B,)."""
        return self.weight * self.cosine(features)


def _make_network(size: int, hidden_size: int, generator: torch.Generator) -> torch.nn.Sequential:
    """A network with one hidden layer that returns zeros at first."""
    inner, outer = (torch.nn.Linear(*each, device="meta") for each in ((size, hidden_size), (hidden_size, size)))
    inner.weight = torch.nn.Parameter(torch.randn(hidden_size, size, generator=generator) * math.sqrt(2 / size))
    inner.bias, outer.bias = (torch.nn.Parameter(torch.zeros(each)) for each in (hidden_size, size))
    outer.weight = torch.nn.Parameter(torch.zeros(size, hidden_size))
    return torch.nn.Sequential(inner, torch.nn.ReLU(), outer)


class TunedCLIPReward(HeadReward):
    """Scores states by a `TunedHead` on the features of all of their views.

    Args:
        model: See `TunedCLIP`, as for all others.
        prompt: The goal; not needed with a `head`.
        head: The file of a head; None: it begins as CLIP's cosine similarity.
        hidden_size: Of a head that begins.
        weight: Of a head that begins.
        options: The other arguments of `HeadReward`.

    Raises:
        ValueError, FileNotFoundError, RuntimeError: As `TunedCLIP.build`.
    """

    def __init__(
        self, model: str, *, prompt: str | None, head: str | None, hidden_size: int, weight: float, **options: Any
    ) -> None:
        if head is not None:
            made = TunedHead.load(head)
        else:
            assert prompt is not None
            clip = CLIPReward(model, prompt=prompt, **options)
            own: dict[str, Any] = {"fingerprint": clip.fingerprint, "prompt": prompt}
            made = TunedHead(clip.feature_size, hidden_size=hidden_size, weight=weight, **own).requires_grad_(False)
            made.text.copy_(clip.head.goal)
        super().__init__(model, head=made, **options)
