"""Default settings for each environment, and configurations with defaults filled in."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from vlmrm_gym.registration import check_env_kwargs, find_spec, find_task, make_base_env
from vlmrm_gym.rewards.default_model import announced, default_model
from vlmrm_gym.tasks import CART_POLE_TRAINING, HUMANOID_TRAINING
from vlmrm_gym.training.algorithms import ALGORITHMS, find_setting, parameters
from vlmrm_gym.training.aliases import LEGACY_NAMES
from vlmrm_gym.training.config import Config, LoggingConfig, RLConfig

_MIN_STEPS, _MIN_EPISODES = 200_000, 25
"""Minimum length of training runs, if no record has defaults, in total steps and in episodes of every environment."""
_LOGGED = {"checkpoint_freq": 10, "video_freq": 5, "tensorboard_freq": 100}
"""How often in a run something is written."""
_PUBLISHED_KEYS = {"n_steps", "n_envs_per_worker", "episode_length", "learning_starts", "train_freq", "batch_size"}
_PUBLISHED_KEYS |= {"gradient_steps", "tau", "gamma", "learning_rate"}
"""Keys of `rl` that every configuration file of the published code has."""


@dataclass(frozen=True)
class Traits:
    """Properties of an environment."""

    observation_space: gym.spaces.Space[Any]
    action_space: gym.spaces.Space[Any]
    episode_length: int | None
    """The ID's own time limit, in steps."""
    model: str
    """The model of rewards that name none."""


def read_traits(id: str, env_kwargs: Mapping[str, Any] | None = None) -> Traits:
    """Make an environment, read its properties, and close it.

    `env_kwargs` is not for tasks that have a record. Raises whatever making it raises, and a ValueError if it does not
    render arrays.
    """
    return _read_traits(id, json.dumps(env_kwargs or {}))


@cache
def _read_traits(id: str, env_kwargs: str) -> Traits:
    if (task := find_task(id)) is not None:
        env, length = make_base_env(task, task.episode_length), task.episode_length
    else:
        spec = find_spec(id)
        env, length = gym.make(spec, **check_env_kwargs(json.loads(env_kwargs))), spec.max_episode_steps
    try:
        modes = env.metadata.get("render_modes", [])
        if "rgb_array" not in modes:
            raise ValueError(f'its environments must have the render mode "rgb_array". They have {modes}.')
        return Traits(env.observation_space, env.action_space, length, default_model(env))
    finally:
        env.close()


def with_defaults(config: Config) -> Config:
    """Fill in the defaults of a configuration for its environment and algorithm.

    Keys of `rl` stay away if the algorithm lacks the parameter or uses Stable-Baselines3's default. Raises a ValueError
    if the environment has no time limit and none is given, and what `read_traits` raises.
    """
    user_rl, traits = config.rl, read_traits(config.id, config.env_kwargs)
    if (length := user_rl.episode_length or traits.episode_length) is None:
        rule = f"must be given: {config.id} has no time limit of its own. Received None."
        raise ValueError(f"`episode_length` {rule} Say after how many steps episodes are truncated.")
    reward = config.reward_with_task_prompts
    if reward.name in ("clip", "preference") and reward.model is None and "model" not in (reward.kwargs or {}):
        reward = replace(reward, model=announced(traits.model))
    config = replace(config, rl=replace(user_rl, episode_length=length), reward=reward)
    filled = _task_defaults(config)
    algorithm = user_rl.algorithm or filled["algorithm"]
    if config.env_name in LEGACY_NAMES and config.rl.values.keys() >= _PUBLISHED_KEYS:
        # In a file of the published code missing keys mean Stable-Baselines3's defaults; but 1, not DQN's 10,000:
        filled = {"target_update_interval": 1}
    is_dict = isinstance(traits.observation_space, spaces.Dict)
    filled |= {"algorithm": algorithm, "policy_name": "MultiInputPolicy" if is_dict else "MlpPolicy"}
    known = {one.name for one in fields(RLConfig)} - RLConfig.of(filled).arguments.keys() | parameters(algorithm).keys()
    if ALGORITHMS[algorithm].on_policy:  # these keys have another meaning for them
        known -= {"train_freq", "gradient_steps", "batch_size"}
    rl = RLConfig.of({name: value for name, value in filled.items() if name in known} | config.rl.values)
    assert rl.n_steps is not None
    config = replace(config, rl=rl)
    if user_rl.learning_starts is None and rl.learning_starts is not None:  # leave time to learn in short runs
        starts = max(config.min_steps_to_reward - 1, min(rl.learning_starts, rl.n_steps // 2))
        config = replace(config, rl=replace(rl, learning_starts=starts))
    if config.preferences.every is None and config.reward.labeler is not None:
        first = config.preferences.first or find_setting(config.rl, "learning_starts") or 0
        every = max(1, (rl.n_steps - first) // 2 // config.preferences.num_rounds)
        config = replace(config, preferences=replace(config.preferences, every=every))
    logging = {key: getattr(config.logging, key) for key in _LOGGED}
    logging = {key: rl.n_steps // _LOGGED[key] or 1 if value is None else value for key, value in logging.items()}
    return replace(config, logging=LoggingConfig(**logging))


def first_round(config: Config) -> int:
    """Steps before the first round about pairs."""
    preferences = config.preferences
    return preferences.first or find_setting(config.rl, "learning_starts") or preferences.every or 1


def _task_defaults(config: Config) -> dict[str, Any]:
    """Settings of the task's record; what it leaves open is as in our task with such actions, trained for longer."""
    traits = read_traits(config.id, config.env_kwargs)
    is_discrete, space = isinstance(traits.action_space, spaces.Discrete), traits.observation_space
    generic: Mapping[str, Any] = CART_POLE_TRAINING if is_discrete else HUMANOID_TRAINING
    defaults = {key: value for key, value in generic.items() if key != "normalize_observations"} | {"gamma": 0.99}
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and not is_discrete:
        defaults["normalize_observations"] = True
    num_envs = config.rl.n_envs_per_worker or defaults["n_envs_per_worker"]
    needed = replace(config, rl=replace(config.rl, n_envs_per_worker=num_envs)).min_steps_to_reward
    defaults |= {"learning_starts": needed, "n_steps": max(_MIN_STEPS, _MIN_EPISODES * needed)}
    return defaults if config.task is None else {**defaults, **config.task.training}
