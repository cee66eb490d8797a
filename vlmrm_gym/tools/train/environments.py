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
        columns = {"task_reward": np.array(rewards), "vlm_rewards": late}
        columns |= dict.fromkeys(("vlm_reward_start", "vlm_step_index"), index)
        masks = {f"_{name}": np.full(self.num_envs, True) for name in columns}
        return observations, rewards, terminations, truncations, {**infos, **columns, **masks}

    def flush(self) -> dict[str, Any]:
        """Infos without rewards: none are late."""
        return {}


def make_envs(config: Config, num_envs: int, *, for_training: bool = False) -> VectorEnv[Any, Any, Any]:
    """Vector environments for a `VLMVecEnv`, from a configuration with defaults filled in.

    For training they step on while episodes are scored, interpolate rewards, and start near the goal, as it says.
    """
    near_goal = config.rl.start_near_goal
    curriculum = {"start_near_goal": near_goal} if for_training and near_goal else {}
    keywords = config.reward.keywords(vector=True, training=for_training)
    return _make(config, num_envs, AutoresetMode.SAME_STEP, keywords, curriculum)


def make_video_env(config: Config) -> VectorEnv[Any, Any, Any]:
    """A vector of one environment for a video, scored in this process and not reset when its episode ends, so that its
    last frame is that of the terminal state.
    """
    return _make(config, 1, AutoresetMode.DISABLED, config.reward.keywords(vector=False), {})


def _make(
    config: Config, num_envs: int, mode: AutoresetMode, keywords: dict[str, Any], env_kwargs: dict[str, Any]
) -> VectorEnv[Any, Any, Any]:
    """Environments with these keywords of scoring, if they are scored, and these arguments of the task's class."""
    has_looks = config.task is not None and "textured" in config.task.kwargs
    if has_looks or not config.reward.textured:  # environments without looks refuse it
        env_kwargs = {"textured": config.reward.textured, **env_kwargs}
    with constructing(config, "env_name"):
        specification = find_specification(config)
        if specification is None:
            return TaskRewardVectorEnv(_make_unscored(config, num_envs, mode, env_kwargs))
        if specification.terminates:  # also where agents are evaluated
            keywords = {**keywords, "scoring": "step"}
        options = {"episode_length": config.rl.episode_length, "env_kwargs": config.env_kwargs}
        options |= keywords | {"reward": specification} | env_kwargs
        return make_vector_env(config.id, num_envs, autoreset_mode=mode, **options)


def _make_unscored(
    config: Config, num_envs: int, mode: AutoresetMode, env_kwargs: dict[str, Any]
) -> VectorEnv[Any, Any, Any]:
    task, length = config.task, config.rl.episode_length
    assert length is not None
    if task is not None:
        return make_base_vector_env(task, num_envs, episode_length=length, autoreset_mode=mode, **env_kwargs)
    make = partial(make_external_env, config.id, length, config.env_kwargs)
    # Copies: environments that reuse their array would overwrite an episode's last observation.
    copying = lambda: TransformObservation(make(), copy.deepcopy, None)  # noqa: E731
    return SyncVectorEnv([copying] * num_envs, autoreset_mode=mode)
