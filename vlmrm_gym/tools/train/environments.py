"""Environments made from a configuration."""

import copy
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers import TransformObservation

from vlmrm_gym.envs.make import make_base_vector_env, make_external_env, make_vector_env
from vlmrm_gym.tools.train.checks import find_specification
from vlmrm_gym.tools.train.config import Config
from vlmrm_gym.tools.train.config_file import constructing


class TaskRewardVectorEnv(VectorWrapper):
    """Environments with their own rewards, in the infos too, as `VLMVecEnv` and `read_late` expect."""

    _num_steps = 0

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step; `infos["task_reward"]` and `infos["vlm_rewards"]` are the reward."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        late = np.fromiter((np.array([reward], dtype=np.float32) for reward in rewards), dtype=object)
        index = np.full(self.num_envs, self._num_steps)
        self._num_steps += 1
        columns = {
            "task_reward": np.array(rewards),
            "vlm_rewards": late,
            "vlm_reward_start": index,
            "vlm_step_index": index,
        }
        masks = {f"_{name}": np.full(self.num_envs, True) for name in columns}
        return observations, rewards, terminations, truncations, {**infos, **columns, **masks}


def make_envs(config: Config, num_envs: int, *, for_training: bool = False) -> VectorEnv[Any, Any, Any]:
    """Vector environments for a `VLMVecEnv`, from a configuration with defaults filled in.

    For training they step on while episodes are scored, interpolate rewards, and start near the goal, as it says.
    """
    reward, near_goal = config.reward, config.rl.start_near_goal
    curriculum: dict[str, Any] = {"start_near_goal": near_goal} if for_training and near_goal else {}
    with constructing(config, "env_name"):
        if reward.name == "ground_truth":
            return _make_unscored(config, num_envs, AutoresetMode.SAME_STEP, curriculum)
        options = reward.keywords(vector=True, training=for_training) | _arguments(config) | curriculum | _mode(config)
        return make_vector_env(config.id, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **options)


def make_video_env(config: Config) -> VectorEnv[Any, Any, Any]:
    """A vector of one environment for a video, scored in this process and not reset when its episode ends, so that its
    last frame is that of the terminal state.
    """
    with constructing(config, "env_name"):
        if config.reward.name == "ground_truth":
            return _make_unscored(config, 1, AutoresetMode.DISABLED, {})
        options = config.reward.keywords(vector=False) | _arguments(config) | _mode(config)
        return make_vector_env(config.id, 1, autoreset_mode=AutoresetMode.DISABLED, **options)


def _mode(config: Config) -> dict[str, Any]:
    """The mode of scoring that a reward needs which ends episodes, also where agents are evaluated."""
    specification = find_specification(config)
    return {"scoring": "step"} if specification is not None and specification.terminates else {}


def _make_unscored(
    config: Config, num_envs: int, mode: AutoresetMode, curriculum: dict[str, Any]
) -> TaskRewardVectorEnv:
    task, length = config.task, config.rl.episode_length
    assert length is not None
    if task is None:
        make = partial(make_external_env, config.id, length, config.env_kwargs)
        # Copies: environments that reuse their array would overwrite an episode's last observation.
        copying = lambda: TransformObservation(make(), copy.deepcopy, None)  # noqa: E731
        return TaskRewardVectorEnv(SyncVectorEnv([copying] * num_envs, autoreset_mode=mode))
    env_kwargs = _look(config) | curriculum
    envs = make_base_vector_env(task, num_envs, episode_length=length, autoreset_mode=mode, **env_kwargs)
    return TaskRewardVectorEnv(envs)


def _look(config: Config) -> dict[str, Any]:
    """The look, for environments that have another one; they refuse it otherwise."""
    has_looks = config.task is not None and "textured" in config.task.kwargs
    return {"textured": config.reward.textured} if has_looks or not config.reward.textured else {}


def _arguments(config: Config) -> dict[str, Any]:
    """Keyword arguments of `make_vector_env` that say which reward and which environment."""
    base = {"episode_length": config.rl.episode_length, "env_kwargs": config.env_kwargs}
    return base | config.reward.arguments() | _look(config)
