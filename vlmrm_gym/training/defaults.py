"""Default settings for each environment, and configurations with defaults filled in."""

from dataclasses import fields, replace

import numpy as np
from gymnasium import spaces

from vlmrm_gym.tasks import CART_POLE_TRAINING, HUMANOID_TRAINING
from vlmrm_gym.training.algorithms import ALGORITHMS, accepted_keys
from vlmrm_gym.training.config import (
    LEGACY_NAMES,
    NON_ALGORITHM_KEYS,
    AlgorithmName,
    Config,
    LoggingConfig,
    PolicyName,
    RLConfig,
)
from vlmrm_gym.training.external_envs import Traits, read_traits

_MIN_STEPS, _MIN_EPISODES = 200_000, 25
"""Minimum length of training runs, if no record has defaults, in total steps and in episodes of every environment."""


def is_discrete(config: Config) -> bool:
    """Whether the environment's actions are discrete.

    Raises:
        Exception: As `read_traits`.
    """
    return isinstance(_traits(config).action_space, spaces.Discrete)


def default_algorithm(config: Config) -> AlgorithmName:
    """The configured algorithm, or the default for the environment.

    Raises:
        Exception: As `read_traits`.
    """
    own = None if config.task is None else config.task.training.get("algorithm")
    return config.rl.algorithm or own or ("DQN" if is_discrete(config) else "SAC")


def default_policy(config: Config) -> PolicyName:
    """The configured kind of network, or the default for the observations.

    Raises:
        Exception: As `read_traits`.
    """
    is_mapping = isinstance(_traits(config).observation_space, spaces.Dict)
    return config.rl.policy_name or ("MultiInputPolicy" if is_mapping else "MlpPolicy")


def episode_length(config: Config) -> int | None:
    """Steps until an episode is truncated; None for an ID without a time limit.

    Raises:
        Exception: As `read_traits`.
    """
    return config.rl.episode_length or _traits(config).episode_length


def _traits(config: Config) -> Traits:
    return read_traits(config.id, config.env_kwargs)


def _defaults_from_traits(config: Config) -> RLConfig:
    """Settings for any ID: those of our task with the same kind of actions, trained for longer."""
    space = _traits(config).observation_space
    own = replace(RLConfig(**(CART_POLE_TRAINING if is_discrete(config) else HUMANOID_TRAINING)), gamma=0.99)
    is_flat = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    own.normalize_observations = True if is_flat and not is_discrete(config) else None
    num_envs = config.rl.n_envs_per_worker or own.n_envs_per_worker
    rl = replace(config.rl, n_envs_per_worker=num_envs, episode_length=episode_length(config))
    own.learning_starts = replace(config, rl=rl).min_steps_to_reward
    own.n_steps = max(_MIN_STEPS, _MIN_EPISODES * own.learning_starts)
    return own


_PUBLISHED_KEYS = (
    "n_steps",
    "n_envs_per_worker",
    "episode_length",
    "learning_starts",
    "train_freq",
    "batch_size",
    "gradient_steps",
    "tau",
    "gamma",
    "learning_rate",
)
"""Keys of `rl` that every configuration file of the published code has."""


def _is_published(config: Config) -> bool:
    """Whether this is a file of the published code, where missing keys mean Stable-Baselines3's defaults."""
    return config.env_name in LEGACY_NAMES and all(getattr(config.rl, key) is not None for key in _PUBLISHED_KEYS)


def with_defaults(config: Config) -> Config:
    """The configuration with defaults filled in for its environment and algorithm.

    Keys of `rl` stay None if the algorithm lacks the parameter or uses Stable-Baselines3's default.

    Raises:
        Exception: As `read_traits`.
    """
    task, given = config.task, config.rl
    own = replace(_defaults_from_traits(config), **({} if task is None else task.training))
    algorithm = default_algorithm(config)
    known = accepted_keys(algorithm)
    rl = replace(given, algorithm=algorithm, policy_name=default_policy(config))
    if _is_published(config):
        own = RLConfig(algorithm=algorithm, target_update_interval=1)  # the published default; DQN's is 10,000
    for key in (one.name for one in fields(rl)):
        if getattr(rl, key) is None and (key in known or key in NON_ALGORITHM_KEYS):
            setattr(rl, key, getattr(own, key))
    if ALGORITHMS[algorithm].on_policy:  # these keys have another meaning for them
        rl.train_freq, rl.gradient_steps, rl.batch_size = given.train_freq, given.gradient_steps, given.batch_size
    rl.episode_length = episode_length(config)
    assert rl.n_steps is not None
    if given.learning_starts is None and rl.learning_starts is not None:  # leave time to learn in short runs
        earliest = replace(config, rl=rl).min_steps_to_reward - 1
        rl.learning_starts = max(earliest, min(rl.learning_starts, rl.n_steps // 2))
    logging = LoggingConfig(
        **{
            key: max(1, rl.n_steps // count) if (value := getattr(config.logging, key)) is None else value
            for key, count in {"checkpoint_freq": 10, "video_freq": 5, "tensorboard_freq": 100}.items()
        }
    )
    return replace(config, rl=rl, reward=config.reward_with_task_prompts, logging=logging)
