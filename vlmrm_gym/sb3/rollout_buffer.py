"""A rollout buffer for Stable-Baselines3 that fills in its rewards before advantages are computed."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from vlmrm_gym._util.validation import check_observation_space, short_repr
from vlmrm_gym.sb3.checks import DeferredBuffer, check_normalization
from vlmrm_gym.sb3.vec_env import VLMVecEnv


class RewardHandle:
    """Gives a `DeferredRolloutBuffer` its rewards: `rollout_buffer_kwargs={"rewards": RewardHandle(envs)}`.

    A model is saved with its handle, but without the environments: pass a new handle to `load`. After `set_env` the
    algorithm needs a new handle, too, and so a new buffer.

    Args:
        envs: The environments that the algorithm trains on: a `VLMVecEnv`, or wrappers around one.

    Raises:
        ValueError: `envs` is something else, or a `VecNormalize` that normalises rewards.
    """

    def __init__(self, envs: VecEnv) -> None:
        base = envs.unwrapped if isinstance(envs, VecEnv) else envs
        if not isinstance(base, VLMVecEnv):
            raise ValueError(f"`envs` must be a VLMVecEnv, such as `make_vec_env` returns. Received {envs!r}.")
        check_normalization(unwrap_vec_normalize(envs))
        self.envs: VLMVecEnv | None = base

    def __getstate__(self) -> dict[str, Any]:
        return {"envs": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> "RewardHandle":
        return self


class DeferredRolloutBuffer(DeferredBuffer, RolloutBuffer):
    """A rollout buffer that fills in the rewards of its rollout, unfinished episodes included, before advantages.

    For `rollout_buffer_class` of PPO and A2C, on a `VLMVecEnv`. If observations are dictionaries, an instance is also
    a `DictRolloutBuffer` of Stable-Baselines3.

    Args:
        buffer_size: See Stable-Baselines3, like all other parameters but `rewards`.
        observation_space: A box or discrete space, or a flat Dict of such spaces.
        rewards: A handle of the environments that the algorithm trains on.

    Raises:
        ValueError: `rewards` is missing, or the observation space is of another kind.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym.spaces.Space[Any],
        *args: Any,
        rewards: RewardHandle | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(rewards, RewardHandle):
            raise ValueError(
                '`rewards` must be a RewardHandle: pass rollout_buffer_kwargs={"rewards": RewardHandle(envs)}. '
                f"Received {short_repr(rewards)}."
            )
        self._envs = rewards.envs
        check_observation_space("observation_space", observation_space)
        super().__init__(buffer_size, observation_space, *args, **kwargs)

    def reset(self) -> None:
        """Begin a rollout."""
        super().reset()
        if self._envs is not None:
            self._envs.begin_rollout(self.buffer_size)

    def add(self, obs: Any, action: NDArray[Any], reward: NDArray[Any], *args: Any, **kwargs: Any) -> None:
        """Add a step, whose rewards are filled in later."""
        if self._envs is None:
            raise ValueError(
                "`rewards` must be a RewardHandle with its environments. Received one that was loaded from a file: "
                'pass rollout_buffer_kwargs={"rewards": RewardHandle(envs)} to `load`.'
            )
        if not np.isfinite(reward).all():
            raise ValueError(
                "`rewards` must be a RewardHandle of the environments that the algorithm trains on. Received one of "
                "others: after `set_env`, make a new algorithm, or `load` this one with another RewardHandle. Or "
                "something else stepped them during the rollout: give EvalCallback environments of its own."
            )
        super().add(obs, action, reward, *args, **kwargs)

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: NDArray[Any]) -> None:
        """Wait for the rewards of the rollout, then compute returns and advantages."""
        assert self._envs is not None
        # Added, because the algorithm has added values at time limits to the placeholders, which are 0.
        self.rewards += self._envs.rollout_rewards(self.buffer_size)
        super().compute_returns_and_advantage(last_values, dones)


class DeferredDictRolloutBuffer(DeferredRolloutBuffer, DictRolloutBuffer):
    """A `DeferredRolloutBuffer` for observations that are dictionaries."""


DeferredRolloutBuffer.for_dictionaries = DeferredDictRolloutBuffer
