"""The vector environment to score: the one that was passed, or one made of a list of functions."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from vlmrm_gym.closing import close_on_error
from vlmrm_gym.validation import short_repr


def as_vector_env(
    env: VectorEnv[Any, Any, Any] | Sequence[Callable[[], gym.Env[Any, Any]]], mode: AutoresetMode | None
) -> VectorEnv[Any, Any, Any]:
    """Return a vector environment as it is, and make a `SyncVectorEnv` of a list of functions.

    If this raises, the environments that the functions made are closed.

    Args:
        env: A vector environment, or functions that make environments.
        mode: When an environment of such functions that has ended is reset; None: next-step.

    Raises:
        ValueError: `env` is neither, or has the same environment twice.
    """
    if isinstance(env, VectorEnv):
        if isinstance(env.unwrapped, SyncVectorEnv):
            _check_distinct(env.unwrapped.envs)
        return env
    if not isinstance(env, Sequence) or isinstance(env, str) or not env or not all(map(callable, env)):
        raise ValueError(
            "`env` must be a vector environment, or a list of functions that make environments, at least one. "
            f"Received {short_repr(env)}."
        )
    envs: list[gym.Env[Any, Any]] = []
    with close_on_error(envs):
        for make in env:
            one = make()
            if not isinstance(one, gym.Env):
                raise ValueError(f"`env` must be a list of functions that make environments. One made {one!r}.")
            envs.append(one)
        _check_distinct(envs)
        return SyncVectorEnv([lambda one=one: one for one in envs], autoreset_mode=mode or AutoresetMode.NEXT_STEP)


def _check_distinct(envs: Sequence[gym.Env[Any, Any]]) -> None:
    """Raise a ValueError if two environments are the same object, wrapped or not."""
    first_index: dict[int, int] = {}
    for i, env in enumerate(envs):
        if (first := first_index.setdefault(id(env.unwrapped), i)) != i:
            raise ValueError(
                f"`env` must have a different object for each environment. Received {env.unwrapped} as number {first} "
                f"and as number {i}. Each function must make a new environment."
            )
