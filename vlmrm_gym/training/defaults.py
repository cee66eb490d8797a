"""Default settings for each environment, and configurations with defaults filled in."""

from dataclasses import fields, replace

import numpy as np
from gymnasium import spaces

from vlmrm_gym.rewards.default_model import announced
from vlmrm_gym.rollouts.traits import read_traits
from vlmrm_gym.tasks import CART_POLE_TRAINING, HUMANOID_TRAINING
from vlmrm_gym.training.algorithms import ALGORITHMS, accepted_keys, find_setting
from vlmrm_gym.training.aliases import LEGACY_NAMES
from vlmrm_gym.training.config import NON_ALGORITHM_KEYS, Config, LoggingConfig, RLConfig

_MIN_STEPS, _MIN_EPISODES = 200_000, 25
"""Minimum length of training runs, if no record has defaults, in total steps and in episodes of every environment."""
_LOGGED = {"checkpoint_freq": 10, "video_freq": 5, "tensorboard_freq": 100}
"""How often in a run something is written."""
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


def with_defaults(config: Config) -> Config:
    """The configuration with defaults filled in for its environment and algorithm.

    Keys of `rl` stay None if the algorithm lacks the parameter or uses Stable-Baselines3's default.

    Raises:
        ValueError: The environment has no time limit, and none is given.
        Exception: As `read_traits`.
    """
    given, traits = config.rl, read_traits(config.id, config.env_kwargs)
    if (length := given.episode_length or traits.episode_length) is None:
        rule = f"must be given: {config.id} has no time limit of its own. Received None."
        raise ValueError(f"`episode_length` {rule} Say after how many steps episodes are truncated.")
    reward = config.reward_with_task_prompts
    if reward.name in ("clip", "preference") and reward.model is None and "model" not in (reward.kwargs or {}):
        reward = replace(reward, model=announced(traits.model))
    config = replace(config, rl=replace(given, episode_length=length), reward=reward)
    own = _task_defaults(config)
    is_dict = isinstance(traits.observation_space, spaces.Dict)
    algorithm = given.algorithm or own.algorithm
    assert algorithm is not None
    if config.env_name in LEGACY_NAMES and all(getattr(given, key) is not None for key in _PUBLISHED_KEYS):
        # In a file of the published code missing keys mean Stable-Baselines3's defaults; but 1, not DQN's 10,000:
        own = RLConfig(target_update_interval=1)
    own.algorithm, own.policy_name = algorithm, "MultiInputPolicy" if is_dict else "MlpPolicy"
    keys = {*accepted_keys(algorithm), *NON_ALGORITHM_KEYS}
    if ALGORITHMS[algorithm].on_policy:  # these keys have another meaning for them
        keys -= {"train_freq", "gradient_steps", "batch_size"}
    missing = [one.name for one in fields(given) if getattr(config.rl, one.name) is None and one.name in keys]
    rl = replace(config.rl, **{key: getattr(own, key) for key in missing})
    config = replace(config, rl=rl)
    assert rl.n_steps is not None
    if given.learning_starts is None and rl.learning_starts is not None:  # leave time to learn in short runs
        rl.learning_starts = max(config.min_steps_to_reward - 1, min(rl.learning_starts, rl.n_steps // 2))
    if config.preferences.every is None and config.reward.labeler is not None:
        steps = (rl.n_steps - (config.preferences.first or find_setting(rl, "learning_starts") or 0)) // 2
        every = max(1, steps // config.preferences.num_sessions)
        config = replace(config, preferences=replace(config.preferences, every=every))
    logging = {key: getattr(config.logging, key) for key in _LOGGED}
    logging = {key: rl.n_steps // _LOGGED[key] or 1 if value is None else value for key, value in logging.items()}
    return replace(config, logging=LoggingConfig(**logging))


def first_session(config: Config) -> int:
    """Steps before the first session about pairs."""
    own = config.preferences
    return own.first or find_setting(config.rl, "learning_starts") or own.every or 1


def _task_defaults(config: Config) -> RLConfig:
    """Settings of the task's record; what it leaves open is as in our task with such actions, trained for longer."""
    traits = read_traits(config.id, config.env_kwargs)
    is_discrete, space = isinstance(traits.action_space, spaces.Discrete), traits.observation_space
    own = replace(RLConfig(**(CART_POLE_TRAINING if is_discrete else HUMANOID_TRAINING)), gamma=0.99)
    is_flat = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    own.normalize_observations = True if is_flat and not is_discrete else None
    num_envs = config.rl.n_envs_per_worker or own.n_envs_per_worker
    rl = replace(config.rl, n_envs_per_worker=num_envs)
    own.learning_starts = replace(config, rl=rl).min_steps_to_reward
    own.n_steps = max(_MIN_STEPS, _MIN_EPISODES * own.learning_starts)
    return own if config.task is None else replace(own, **config.task.training)
