"""The head of rewards that are learned from comparisons: an ensemble of networks."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch

from vlmrm_gym.rewards.saved_heads import SavedHead

LIMIT = 5.0
"""Rewards are between minus this and this, in standard deviations."""


class PreferenceHead(SavedHead):
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
    arguments = ("shape", "ensemble", "hidden_size", "fingerprint", "prompt")

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
