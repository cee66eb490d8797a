"""Environments made from a configuration."""

from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from vlmrm_gym.registration import (
    make_base_vector_env,
    make_external_env,
    make_vector_env,
)
from vlmrm_gym.training.config import Config
from vlmrm_gym.training.constructing import constructing


class TaskRewardVectorEnv(VectorWrapper[Any, Any, Any, Any, Any]):
    """Environments with their own rewards, and with the infos that `VLMVecEnv` expects."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step; `infos["task_reward"]` is the reward."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        own = {"task_reward": rewards, "_task_reward": np.full(self.num_envs, True)}
        return observations, rewards, terminations, truncations, {**infos, **own}


def make_envs(
    config: Config, num_envs: int, *, overlap: bool = False, sparse: bool = False, start_near_goal: float = 0.0
) -> VectorEnv[Any, Any, Any]:
    """Vector environments for a `VLMVecEnv`, from a configuration with defaults filled in.

    Args:
        config: The configuration.
        num_envs: Number of environments.
        overlap: Whether they step on while episodes are scored.
        sparse: Whether rewards may be interpolated, as the configuration says; not for evaluation.
        start_near_goal: See `Humanoid`; 0 for evaluation.

    Raises:
        ConfigError: They cannot be made.
    """
    curriculum: dict[str, Any] = {"start_near_goal": start_near_goal} if start_near_goal else {}
    with constructing(config, "env_name"):
        if config.reward.name == "ground_truth":
            return TaskRewardVectorEnv(_make_unscored(config, num_envs, curriculum, AutoresetMode.SAME_STEP))
        scoring = (*_SCORING, *(_SPARSE if sparse else ()))
        options = {name: getattr(config.reward, name) for name in scoring} | _options(config) | curriculum
        return make_vector_env(config.id, num_envs, autoreset_mode="SameStep", overlap=overlap, **options)


def make_video_env(config: Config) -> VectorEnv[Any, Any, Any]:
    """A vector of one environment for a video, scored in this process and not reset when its episode ends.

    Its last frame is that of the terminal state.

    Raises:
        ConfigError: It cannot be made.
    """
    with constructing(config, "env_name"):
        if config.reward.name == "ground_truth":
            return _make_unscored(config, 1, {}, AutoresetMode.DISABLED)
        return make_vector_env(config.id, 1, autoreset_mode=AutoresetMode.DISABLED, **_options(config))


_SCORING = ("num_workers", "backend", "ray_options", "devices", "max_pending_bytes", "worker_timeouts")
"""Keyword arguments of vector environments only."""
_SPARSE = ("score_every", "score_tolerance")
"""And those that choose which states are scored."""


def _make_unscored(
    config: Config, num_envs: int, curriculum: dict[str, Any], mode: AutoresetMode
) -> VectorEnv[Any, Any, Any]:
    task, length = config.task, config.rl.episode_length
    assert length is not None
    if task is None:
        make = partial(make_external_env, config.id, length, config.env_kwargs)
        return SyncVectorEnv([make] * num_envs, autoreset_mode=mode)
    env_kwargs = _look(config) | curriculum
    return make_base_vector_env(task, num_envs, episode_length=length, autoreset_mode=mode, **env_kwargs)


def _look(config: Config) -> dict[str, Any]:
    """The look, for environments that have another one; they refuse it otherwise."""
    has_looks = config.task is not None and "textured" in config.task.kwargs
    return {"textured": config.reward.textured} if has_looks or not config.reward.textured else {}


def _options(config: Config) -> dict[str, Any]:
    """Keyword arguments of `make_vector_env`."""
    reward = config.reward
    options = {name: getattr(reward, name) for name in ("device", "quality", "task_reward_weight")}
    options |= {"episode_length": config.rl.episode_length, "env_kwargs": config.env_kwargs, **reward.arguments()}
    given = {name: value for name in ("camera", "combine_views") if (value := getattr(reward, name)) is not None}
    return options | given | _look(config)
