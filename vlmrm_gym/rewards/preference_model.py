"""The head of rewards that are learned from comparisons, an ensemble of networks; its file; and the model of both."""

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from vlmrm_gym._util.files import atomic_write
from vlmrm_gym._util.untrusted import parse_json, read_file
from vlmrm_gym._util.validation import truncate
from vlmrm_gym.rewards.clip import EncoderFields
from vlmrm_gym.rewards.current_head import check_head
from vlmrm_gym.rewards.encoder import FrameEncoder

LIMIT = 5.0
"""Rewards are between minus this and this, in standard deviations."""
MAX_BYTES = 2**28
"""Size of a head's file, at most."""


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

    key = "vlmrm_gym.preference_head"
    """Of the JSON in a file's metadata."""
    arguments = ("shape", "ensemble", "hidden_size", "fingerprint", "prompt")
    """The arguments of the constructor that a file keeps; attributes have the same names."""

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
        self.feature_mean = torch.nn.Buffer(torch.zeros(sizes[0]))
        self.feature_scale = torch.nn.Buffer(torch.ones(()))
        self.reward_mean = torch.nn.Buffer(torch.zeros(()))
        self.reward_std = torch.nn.Buffer(torch.ones(()))

    def members(self, features: torch.Tensor) -> torch.Tensor:
        """The outputs of each network: features float32 (B, V, D) to float32 (E, B).

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
        """The file's content: safetensors, with the constructor's arguments as JSON in the metadata."""
        tensors = {name: tensor.contiguous().cpu() for name, tensor in self.state_dict().items()}
        # One entry of metadata: the order of several is not fixed.
        return save(tensors, {self.key: json.dumps({name: getattr(self, name) for name in self.arguments})})

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "`content`") -> Self:
        """The head of what `to_bytes` returned. Raise a ValueError, in which it has this name, of anything else."""
        try:
            header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
            with torch.device("meta"):  # what the file says of sizes is not allocated
                head = cls(**parse_json(header["__metadata__"][cls.key]))
            if not isinstance(head.fingerprint, str) or not isinstance(head.prompt, str | None):
                raise TypeError("its fingerprint and its prompt must be texts")
            tensors = load(content)
            for key, tensor in tensors.items():
                if not tensor.numel() or tensor.dtype != torch.float32:
                    raise ValueError(f"`{key}` must be numbers in float32, at least one")
                if not tensor.isfinite().all():
                    raise ValueError(f"`{key}` must be finite")
            head.load_state_dict(tensors, assign=True)
        except (SafetensorError, ValueError, LookupError, TypeError, RuntimeError, ArithmeticError) as error:
            raise ValueError(
                f"{name} must be a head that {cls.__name__}.save wrote. Received another: {truncate(str(error))}."
            ) from error
        return head.requires_grad_(False)

    def save(self, path: str | Path) -> None:
        """Write the head to a file, atomically: `Preference(head=path)` is then a frozen reward."""
        content = self.to_bytes()
        atomic_write(Path(path), lambda unfinished: unfinished.write_bytes(content))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a head from a file.

        Raises:
            FileNotFoundError: It does not exist.
            ValueError: It is something else, or damaged.
        """
        if not Path(path).exists():
            raise FileNotFoundError(f"`head` must be the file of a head. Received {str(path)!r}, which does not exist.")
        return cls.from_bytes(read_file(path, MAX_BYTES), f"`head` {str(path)!r}")


class HeadReward(FrameEncoder):
    """Scores states by a head of the features of all of their views. None: there is no head yet."""

    multi_view = True

    def __init__(self, fields: EncoderFields, *, head: PreferenceHead | None = None, device: str = "auto") -> None:
        super().__init__(fields, device)
        self.head = None if head is None else head.to(self.model.device)
        self.feature_size = self.model.encode_text(["a frame"]).shape[1]
        """Width of the embeddings, D."""
        if head is not None:
            check_head(head, self.fingerprint)
            self.num_views = head.shape[0]
