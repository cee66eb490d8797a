"""The environments that a configuration describes."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from vlmrm_gym.training.config import Config
from vlmrm_gym.vector import make_vector_world
from vlmrm_gym.wrappers import make_world, take_worldly


class TaskRewardVectorEnv(VectorWrapper[Any, Any, Any, Any, Any]):
    """The environments' own rewards, told as `VLMRewardVectorEnv` tells the model's at every step."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step; `infos["task_reward"]` is the reward."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        told = {"task_reward": rewards, "_task_reward": np.full(self.num_envs, True)}
        return observations, rewards, terminations, truncations, {**infos, **told}


def make_envs(config: Config, num_envs: int, *, overlap: bool = False) -> VectorEnv[Any, Any, Any]:
    """Environments for a `VLMVecEnv`, of a `suited` configuration.

    Raises:
        ValueError, TypeError, FileNotFoundError, RuntimeError: As `VLMRewardVectorEnv`.
    """
    task, reward = config.task, config.reward
    if reward.name == "clip":
        scoring = {
            "batch_size": reward.batch_size,
            "num_workers": reward.num_workers,
            "devices": reward.devices,
            "overlap": overlap,
        }
        return gym.make_vec(task.id, num_envs, autoreset_mode="SameStep", **_options(config), **scoring)
    length, worldly = _episode_length(config), _world_options(config)
    worlds = make_vector_world(task.world, num_envs, episode_length=length, autoreset_mode="SameStep", **worldly)
    return TaskRewardVectorEnv(worlds)


def make_env(config: Config) -> gym.Env[Any, Any]:
    """One environment, scored at every step, of a `suited` configuration.

    Raises:
        ValueError, TypeError, FileNotFoundError, RuntimeError: As `VLMReward`.
    """
    if config.reward.name == "clip":
        return gym.make(config.task.id, **_options(config))
    return make_world(config.task.world, _episode_length(config), "rgb_array", _world_options(config))


def _episode_length(config: Config) -> int:
    assert config.rl.episode_length is not None
    return config.rl.episode_length


def _world_options(config: Config) -> dict[str, Any]:
    options = take_worldly(config.task.world, dict(config.task.options))
    return options | ({"textured": config.reward.textured} if "textured" in options else {})


def _options(config: Config) -> dict[str, Any]:
    """What the doors of Gymnasium take."""
    reward, task = config.reward, config.task
    options: dict[str, Any] = {
        "prompt": reward.target_prompts,
        "baseline": reward.baseline_prompts,
        "alpha": reward.alpha,
        "model": reward.pretrained_model,
        "device": reward.device,
        "task_reward_weight": reward.task_reward_weight,
        "episode_length": _episode_length(config),
    }
    if "textured" in task.options:
        options["textured"] = reward.textured
    if "camera" in task.options:
        options["quality"] = reward.quality
        options["camera"] = reward.camera_config or dict(task.options["camera"])
    return options
