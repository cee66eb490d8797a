"""Environments made from a configuration."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from vlmrm_gym.registration import (
    make_base_env,
    make_base_vector_env,
    make_env,
    make_external_env,
    make_vector_env,
    split_env_kwargs,
)
from vlmrm_gym.tasks import Task
from vlmrm_gym.training.config import Config


class TaskRewardVectorEnv(VectorWrapper[Any, Any, Any, Any, Any]):
    """Environments with their own rewards, and with the infos that `VLMVecEnv` expects."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step; `infos["task_reward"]` is the reward."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        own = {"task_reward": rewards, "_task_reward": np.full(self.num_envs, True)}
        return observations, rewards, terminations, truncations, {**infos, **own}


def make_envs(
    config: Config, num_envs: int, *, overlap: bool = False, start_near_goal: float = 0.0
) -> VectorEnv[Any, Any, Any]:
    """Vector environments for a `VLMVecEnv`, from a configuration with defaults filled in.

    Args:
        config: The configuration.
        num_envs: Number of environments.
        overlap: Whether they step on while episodes are scored.
        start_near_goal: See `Humanoid`; 0 for evaluation.

    Raises:
        ValueError, TypeError, FileNotFoundError, RuntimeError: As `VLMRewardVectorEnv`.
        gymnasium.error.Error: The environment cannot be made.
    """
    curriculum: dict[str, Any] = {"start_near_goal": start_near_goal} if start_near_goal else {}
    if config.reward.name == "ground_truth":
        return TaskRewardVectorEnv(_make_unscored(config, num_envs, curriculum))
    options = {name: getattr(config.reward, name) for name in _SCORING} | _options(config) | curriculum
    return make_vector_env(config.id, num_envs, autoreset_mode="SameStep", overlap=overlap, **options)


def make_one(config: Config) -> gym.Env[Any, Any]:
    """One environment, scored at every step, from a configuration with defaults filled in.

    Raises:
        ValueError, TypeError, FileNotFoundError, RuntimeError: As `VLMReward`.
        gymnasium.error.Error: The environment cannot be made.
    """
    if config.reward.name != "ground_truth":
        return make_env(config.id, **_options(config))
    if config.task is None:
        return make_external_env(config.id, config.rl.episode_length, config.env_kwargs)
    return make_base_env(
        config.task.env_cls, _episode_length(config), "rgb_array", _task_env_kwargs(config, config.task)
    )


_SCORING = ("num_workers", "backend", "ray_options", "devices", "max_pending_bytes", "worker_timeouts")
"""Keyword arguments of vector environments only."""


def _make_unscored(config: Config, num_envs: int, curriculum: dict[str, Any]) -> VectorEnv[Any, Any, Any]:
    task, length = config.task, _episode_length(config)
    if task is None:
        make = partial(make_external_env, config.id, length, config.env_kwargs)
        return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    env_kwargs = _task_env_kwargs(config, task) | curriculum
    return make_base_vector_env(task.env_cls, num_envs, episode_length=length, autoreset_mode="SameStep", **env_kwargs)


def _episode_length(config: Config) -> int:
    assert config.rl.episode_length is not None
    return config.rl.episode_length


def _task_env_kwargs(config: Config, task: Task) -> dict[str, Any]:
    options = split_env_kwargs(task.env_cls, dict(task.kwargs))
    return options | ({"textured": config.reward.textured} if "textured" in options else {})


def _options(config: Config) -> dict[str, Any]:
    """Keyword arguments of `make_env` and `make_vector_env`."""
    reward, task = config.reward, config.task
    options = {name: getattr(reward, name) for name in ("device", "quality", "task_reward_weight")}
    options |= {"episode_length": _episode_length(config), "env_kwargs": config.env_kwargs, **reward.arguments()}
    for name in ("camera", "combine_views"):
        if (value := getattr(reward, name)) is not None:
            options[name] = value
    if task is not None and "textured" in task.kwargs:
        options["textured"] = reward.textured
    return options
