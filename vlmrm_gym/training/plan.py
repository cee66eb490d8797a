"""Describes a training before it begins."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vlmrm_gym.training.algorithms import ALGORITHMS, find_setting
from vlmrm_gym.training.checks import find_specification
from vlmrm_gym.training.config import Config
from vlmrm_gym.training.defaults import first_round, read_traits


def plan_training(config: Config) -> Mapping[str, str]:
    """Describe the plan of a training with this configuration, which has its defaults filled in, line by line."""
    rl, reward = config.rl, config.reward
    assert rl.algorithm
    assert rl.n_steps
    plan = {
        "environments": f"{config.num_envs} x {config.id}, episodes of {rl.episode_length} steps",
        "agent": f"{rl.algorithm}, {rl.n_steps:,} steps over all environments, seed {config.seed}",
        "updates": _describe_updates(config, rl.algorithm, rl.n_steps),
    }
    prompts = ", ".join(f'"{prompt}"' for prompt in reward.prompt or [])
    if reward.name != "ground_truth":
        specification: Any = find_specification(config)
        in_workers = reward.num_workers and specification.in_workers
        where = f"{reward.num_workers} {reward.backend} workers" if in_workers else "the process that trains"
        share = f", every {reward.score_every}th state" if reward.score_every > 1 else ""
        what = reward.name if reward.is_own else f"{prompts} by {reward.model}"
        what = what if reward.labeler is None else f"learned from comparisons for {prompts}"
        plan["reward"] = f"{what}{share}, scored by {where}"
        if reward.name in ("clip", "preference") and specification.model != "tiny":
            plan["download"] = f"the weights of {specification.model}, unless they are on this machine"
    if reward.labeler is not None:
        preferences, first = config.preferences, first_round(config)
        labeler = reward.labeler if isinstance(reward.labeler, str) else json.dumps(reward.labeler)
        rounds = f"{preferences.num_rounds} rounds, the first after {first:,} steps, one every {preferences.every:,}"
        plan["comparisons"] = f"{preferences.total:,} pairs in {rounds}; answered by {labeler}"
    if not ALGORITHMS[rl.algorithm].on_policy:
        traits = read_traits(config.id, config.env_kwargs)
        # The observations before and after, the action, the reward, the end and the time limit of all transitions.
        size = _value_bytes(traits.observation_space) * 2 + _value_bytes(traits.action_space) + 12
        plan["memory"] = f"{find_setting(rl, 'buffer_size') * size / 1e9:.2f} GB for the replay buffer when it is full"
        if reward.labeler is not None:
            plan["memory"] += " and more for features, 4 bytes for each number of an embedding"
        plan["memory"] += f", up to {reward.max_pending_bytes / 1e9:.2f} GB for states that wait to be scored"
    return plan


def _describe_updates(config: Config, algorithm: str, n_steps: int) -> str:
    """Count the gradient steps, and those for each step of the environments."""
    rl = config.rl
    frequency, each = find_setting(rl, "train_freq"), find_setting(rl, "gradient_steps")
    every = (frequency[0] if isinstance(frequency, tuple) else frequency) * config.num_envs
    if ALGORITHMS[algorithm].on_policy:  # A2C has one epoch
        return f"{each or 1} epochs over each of {math.ceil(n_steps / every):,} rollouts of {every:,} steps"
    each = every if each == -1 else each
    starts = rl.learning_starts or 0
    per_step = f"{each / every:g} for each step after the first {starts:,}"
    return f"about {max(0, n_steps - starts) // every * each:,} gradient steps: {per_step}"


def _value_bytes(space: Any) -> int:
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return sum(map(_value_bytes, parts.values()))
    return int(np.prod(space.shape or 1)) * (space.dtype or np.dtype(np.float32)).itemsize
