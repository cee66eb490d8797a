"""Spaces and time limits of environments; default settings depend on these."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium as gym

from vlmrm_gym.registration import check_env_kwargs, find_spec, find_task, make_base_env
from vlmrm_gym.rewards.default_model import default_model


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
