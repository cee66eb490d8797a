"""Rewards that are learned from comparisons: the ensemble of networks, its file, and the model that scores frames."""

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from vlmrm_gym.files import atomic_write
from vlmrm_gym.rewards.base import Rewards
from vlmrm_gym.rewards.encoder import FrameEncoder
from vlmrm_gym.rewards.heads import apply_head, check_fingerprint

_KEY = "vlmrm_gym.preference_head"
"""In the metadata of files: what else is known of a head, as JSON."""


LIMIT = 5.0
"""Rewards are between minus this and this, in standard deviations."""


class PreferenceHead(torch.nn.Module):
    """An ensemble of networks with two hidden layers, from the features of all views of a state to its reward.

    The reward is the mean over the networks, shifted and scaled by constants of this head: over the states that it was
    standardised with, rewards have mean 0 and standard deviation 1, so that rewards of different heads are alike to the
    learner. A hyperbolic tangent bounds them at -5 and 5 then. The networks' own outputs are not bounded: bounded ones,
    as in PEBBLE, end up as the rank of a state among those that were compared, which is flat near a goal that
    exploration seldom reaches.

    Args:
        shape: Of a state's features, (V, D).
        ensemble: Number of networks, E.
        hidden_size: Width of the hidden layers.
        fingerprint: Of the features; see `RewardModel`.
        prompt: The goal, as labelers were told.
        seed: Of the weights.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        ensemble: int = 3,
        hidden_size: int = 64,
        fingerprint: str = "",
        prompt: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.shape, self.ensemble, self.hidden_size = tuple(shape), ensemble, hidden_size
        self.fingerprint, self.prompt = fingerprint, prompt
        generator = torch.Generator().manual_seed(seed)
        sizes = [math.prod(shape), hidden_size, hidden_size, 1]
        self.weights, self.biases = torch.nn.ParameterList(), torch.nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            weight = torch.randn(ensemble, inputs, outputs, generator=generator) * math.sqrt(2 / inputs)
            self.weights.append(weight)
            self.biases.append(torch.zeros(ensemble, 1, outputs))
        self.feature_mean: torch.Tensor
        self.feature_scale: torch.Tensor
        self.reward_mean: torch.Tensor
        self.reward_std: torch.Tensor
        self.register_buffer("feature_mean", torch.zeros(sizes[0]))
        self.register_buffer("feature_scale", torch.ones(()))
        self.register_buffer("reward_mean", torch.zeros(()))
        self.register_buffer("reward_std", torch.ones(()))

    def members(self, features: torch.Tensor) -> torch.Tensor:
        """What each network says of states: features float32 (B, V, D) to float32 (E, B).

        Features (E, B, V, D) are other states for each network.
        """
        x = ((features.flatten(-2) - self.feature_mean) / self.feature_scale).expand(self.ensemble, -1, -1)
        *hidden, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in hidden:
            x = torch.baddbmm(bias, x, weight).relu()
        return torch.baddbmm(last[1], x, last[0]).squeeze(-1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Rewards of states: features float32 (B, V, D) to float32 (B,), from -5 to 5."""
        rewards = (self.members(features).mean(0) - self.reward_mean) / self.reward_std
        return LIMIT * (rewards / LIMIT).tanh()

    @torch.no_grad()
    def scale_features(self, features: torch.Tensor) -> None:
        """Centre the networks' input on these features, float32 (B, V, D), and give it unit variance, over all of D."""
        flat = features.flatten(1)
        self.feature_mean.copy_(flat.mean(0))
        self.feature_scale.copy_((flat - self.feature_mean).square().mean().sqrt().clamp_min(1e-6))

    @torch.no_grad()
    def standardise(self, features: torch.Tensor) -> None:
        """Give rewards, before they are bounded, mean 0 and standard deviation 1 over features float32 (B, V, D)."""
        rewards = self.members(features).mean(0)
        self.reward_mean.copy_(rewards.mean())
        self.reward_std.copy_(rewards.std(correction=0).clamp_min(1e-3))

    def to_bytes(self) -> bytes:
        """The file's content: safetensors, with what else is known of the head as JSON in its metadata."""
        known = {name: getattr(self, name) for name in ("shape", "ensemble", "hidden_size", "fingerprint", "prompt")}
        tensors = {name: tensor.contiguous().cpu() for name, tensor in self.state_dict().items()}
        return save(tensors, {_KEY: json.dumps(known)})  # one entry: the order of several is not fixed

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "`content`") -> Self:
        """The head of a file's content.

        Args:
            content: What `to_bytes` returned.
            name: What it is, for messages.

        Raises:
            ValueError: It is something else, or damaged.
        """
        try:
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            with torch.device("meta"):  # what the file says of sizes is not allocated
                head = cls(**json.loads(header["__metadata__"][_KEY]))
            head.load_state_dict(load(content), assign=True)
        except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise ValueError(
                f"{name} must be a head that PreferenceHead.save wrote. Received another: {error}."
            ) from error
        return head.requires_grad_(False)

    def save(self, path: str | Path) -> None:
        """Write the head to a file, atomically: `vlmrm_gym.Preference(head=path)` is then a frozen reward."""
        content = self.to_bytes()
        atomic_write(Path(path), lambda unfinished: unfinished.write_bytes(content))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a head from a file.

        Raises:
            FileNotFoundError: It does not exist.
            ValueError: It is something else, or damaged.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"`head` must be the file of a head. Received {str(path)!r}, which does not exist.")
        return cls.from_bytes(Path(path).read_bytes(), f"`head` {str(path)!r}")


class PreferenceReward(FrameEncoder):
    """Scores states by a `PreferenceHead` on the features of all of their views.

    Args:
        model: See `Preference`, as for all others.
        device: Where the image tower runs.
        head: The file of a head; None: there is none yet.
        options: The other arguments of `FrameEncoder`.

    Attributes:
        head: The `PreferenceHead`; None: there is none yet.
        feature_size: Width of the embeddings, D.

    Raises:
        ValueError, FileNotFoundError, RuntimeError: As `Preference.build`.
    """

    multi_view = True

    def __init__(self, model: str, *, head: str | None = None, device: str = "auto", **options: Any) -> None:
        self.head = None if head is None else PreferenceHead.load(head)
        super().__init__(model, device, **options)
        self.feature_size = self.model.encode_text(["a frame"]).shape[1]
        if self.head is not None:
            check_fingerprint(self.head, self.fingerprint)

    def __call__(self, frames: NDArray[np.uint8]) -> Rewards:
        """Score states: frames uint8 (B, V, H, W, 3) of V views, to rewards, float32 (B,).

        Raises:
            RuntimeError: There is no head yet.
            ValueError: The head is of another number of views.
        """
        if self.head is None:
            raise RuntimeError("The reward has no head yet: it is learned from comparisons. Pass `head`, its file.")
        features = self.encode(frames.reshape(-1, *frames.shape[2:])).cpu().numpy()
        return apply_head(self.head, features.reshape(*frames.shape[:2], -1))
