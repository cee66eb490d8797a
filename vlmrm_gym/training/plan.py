"""What a training will do, before it begins."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vlmrm_gym.training.algorithms import ALGORITHMS, algorithm_class
from vlmrm_gym.training.config import Config
from vlmrm_gym.training.external_envs import read_traits


def plan_training(config: Config) -> Mapping[str, str]:
    """The plan of a training, line by line.

    Args:
        config: A configuration with defaults filled in.
    """
    rl, reward = config.rl, config.reward
    assert rl.algorithm is not None
    assert rl.n_steps is not None
    where = f"{reward.num_workers} {reward.backend} workers" if reward.num_workers else "the process that trains"
    plan = {
        "environments": f"{config.num_envs} x {config.id}, episodes of {rl.episode_length} steps",
        "agent": f"{rl.algorithm}, {rl.n_steps:,} steps over all environments, seed {config.seed}",
        "updates": _describe_updates(config),
    }
    if reward.name != "ground_truth":
        plan["reward"] = f"{_describe_reward(config)}, scored by {where}"
    if not ALGORITHMS[rl.algorithm].on_policy:
        plan["memory"] = f"{_replay_bytes(config) / 1e9:.2f} GB for the replay buffer when it is full"
        plan["memory"] += f", up to {reward.max_pending_bytes / 1e9:.2f} GB for states that wait to be scored"
    if reward.name == "clip" and reward.model != "tiny":
        plan["download"] = f"the weights of {reward.model}, unless they are on this machine"
    return plan


def _describe_reward(config: Config) -> str:
    reward = config.reward
    if reward.is_own:
        return reward.name
    prompts = ", ".join(f'"{prompt}"' for prompt in config.reward_with_task_prompts.prompt or [])
    share = f", every {reward.score_every}th state" if reward.score_every > 1 else ""
    return f"{prompts} by {reward.model}{share}"


def _describe_updates(config: Config) -> str:
    """How many gradient steps there will be, and how many for each step of the environments."""
    rl = config.rl
    assert rl.algorithm is not None
    assert rl.n_steps is not None
    if ALGORITHMS[rl.algorithm].on_policy:
        rollout = int(_setting(config, "train_freq", "n_steps")) * config.num_envs
        epochs = _setting(config, "gradient_steps", "n_epochs") or 1  # A2C has one
        return f"{epochs} epochs over each of {math.ceil(rl.n_steps / rollout):,} rollouts of {rollout:,} steps"
    frequency = _setting(config, "train_freq")
    every = (frequency[0] if isinstance(frequency, tuple) else frequency) * config.num_envs
    each = _setting(config, "gradient_steps")
    each = every if each == -1 else each
    learning = max(0, rl.n_steps - (rl.learning_starts or 0))
    per_step = f"{each / every:g} for each step after the first {rl.learning_starts or 0:,}"
    return f"about {learning // every * each:,} gradient steps: {per_step}"


def _setting(config: Config, key: str, parameter: str | None = None) -> Any:
    """The value of a key of `rl`, else the algorithm's own default."""
    if (value := getattr(config.rl, key)) is not None:
        return value
    assert config.rl.algorithm is not None
    parameters = inspect.signature(algorithm_class(config.rl.algorithm)).parameters
    known = parameters.get(parameter or key)
    return None if known is None else known.default


def _replay_bytes(config: Config) -> int:
    """Memory of the observations before and after, the action, the reward and the end of all transitions."""
    traits = read_traits(config.id, config.env_kwargs)
    size = _value_bytes(traits.observation_space) * 2 + _value_bytes(traits.action_space) + 12
    return int(_setting(config, "buffer_size")) * size


def _value_bytes(space: Any) -> int:
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return sum(map(_value_bytes, parts.values()))
    return int(np.prod(space.shape or 1)) * (space.dtype or np.dtype(np.float32)).itemsize
