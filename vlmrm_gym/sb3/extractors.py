"""A features extractor that normalises observations."""

from typing import Any

import gymnasium as gym
import torch
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor


class RunningNormExtractor(BaseFeaturesExtractor):
    """Flattens observations and normalises them by running means and variances over the training batches.

    The observations of mountain car and of the humanoid differ in scale by a factor of a thousand. `VecNormalize` would
    need the rewards at every step by default; this is part of the policy, and saved with it. Pass it as
    `policy_kwargs={"features_extractor_class": RunningNormExtractor}`.

    Args:
        observation_space: A box or discrete space, or a Dict of such spaces.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor  # "running_": algorithms copy buffers of such names to target networks
    running_count: torch.Tensor

    def __init__(self, observation_space: gym.spaces.Space[Any]) -> None:
        size = gym.spaces.flatdim(observation_space)
        super().__init__(observation_space, size)
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))
        self.register_buffer("running_count", torch.zeros(()))

    def forward(self, observations: Any) -> torch.Tensor:
        """Normalise float32 (B, ...), or a dictionary of such: float32 (B, D), clipped to [-10, 10]."""
        entries = [observations]
        if isinstance(self._observation_space, gym.spaces.Dict):
            entries = [observations[key] for key in self._observation_space]
        flat = torch.cat([entry.flatten(1) for entry in entries], 1)
        if self.training and len(flat) > 1:
            with torch.no_grad():
                self.running_count += 1
                # The mean over all batches at first, an exponential average with weight 1/100 later.
                weight = 1 / self.running_count.clamp_max(100)
                self.running_mean.lerp_(flat.mean(0), weight)
                self.running_var.lerp_(flat.var(0), weight)
        return ((flat - self.running_mean) / self.running_var.sqrt().clamp_min(1e-3)).clamp(-10, 10)
