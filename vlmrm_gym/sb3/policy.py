"""Parts of policies: noise that repeats over several steps, and observations that are normalised."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from vlmrm_gym._util.validation import check_integer, check_positive_integer, is_number, short_repr


class ActionRepeatNoise(ActionNoise):
    """Uniform noise that is repeated for several steps, at the beginning of training.

    Where the reward rises only after many actions in one direction, independent noise does not explore enough: a car
    in a valley has to swing up. For `action_noise` of off-policy algorithms.

    Args:
        size: Number of action dimensions.
        sigma: Noise is uniform from -sigma to sigma. Stable-Baselines3 adds it to actions scaled to [-1, 1], and clips.
        hold: Number of steps for which the same noise is repeated.
        steps: Number of steps of one environment after which the noise is zero.

    Raises:
        ValueError: A parameter is out of range.
    """

    def __init__(self, size: int, *, sigma: float = 2.0, hold: int = 30, steps: int = 1_000) -> None:
        check_positive_integer("size", size)
        if not is_number(sigma) or not 0 < sigma < float("inf"):
            raise ValueError(f"`sigma` must be a finite number above 0. Received {short_repr(sigma)}.")
        check_positive_integer("hold", hold)
        check_integer("steps", steps, minimum=0)
        super().__init__()
        self._size, self._sigma, self._hold, self._steps_left = size, sigma, hold, steps
        self.reset()

    def __call__(self) -> NDArray[np.float32]:
        """The noise of the next step: float32 (size,)."""
        if self._steps_left <= 0:
            return np.zeros(self._size, dtype=np.float32)
        self._steps_left -= 1
        if self._num_repeats == self._hold:
            self.reset()
        self._num_repeats += 1
        return self._noise

    def reset(self) -> None:
        """Draw new noise."""
        self._num_repeats = 0
        self._noise = np.random.uniform(-self._sigma, self._sigma, self._size).astype(np.float32)


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
