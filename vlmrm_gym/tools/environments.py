"""Environments that a command line names, without a reward of a model."""

import difflib
from typing import Any

import gymnasium as gym

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.validation import check_env, short_repr, truncate
from vlmrm_gym.envs.make import find_spec, find_task, make_base_env, make_external_env
from vlmrm_gym.rewards.own import find_callable
from vlmrm_gym.states.view import check_renders
from vlmrm_gym.tasks import Task


def make_unscored_env(
    id: str | None, function: Any, episode_length: int | None = None, *, textured: bool | None = None
) -> gym.Env[Any, Any]:
    """Make the environment that a user names, without a reward of a model; an InputError if it cannot be made.

    It is either that of a registered ID ("module:ID" imports the module first), or of "package.module:attribute", a
    function without arguments or a class; from Python also the function or class itself, or an environment, which is
    not closed. `episode_length`, in steps, and `textured` are for IDs; None: the ID's own.
    """
    if (id is None) == (function is None):
        received = "neither" if id is None else "both"
        raise InputError(f"Either an ID or `env` must be given. Received {received}. `vlmrm-gym tasks` lists IDs.")
    task = None if id is None else find_named_task(id)
    try:
        if function is not None:
            if isinstance(function, gym.Env):
                env: Any = _KeptOpen(function)
            else:
                env = (find_callable(function, "env") if isinstance(function, str) else function)()
            check_env(env)
            check_renders(env)
            return env
        if task is not None:
            look = {} if textured is None else {"textured": textured}
            return make_base_env(task, episode_length or task.episode_length, **look)
        return make_external_env(str(id), episode_length)
    except Exception as error:  # as may the environment's constructor
        reason = truncate(str(error) or repr(error), 1_000)
        raise InputError(f"The environment {short_repr(id or function)} cannot be used: {reason}") from error


class _KeptOpen(gym.Wrapper[Any, Any, Any, Any]):
    """Leaves the environment open: it is its owner's to close."""

    def close(self) -> None:
        """Do nothing."""


def find_named_task(id: str) -> Task | None:
    """The record of the ID that a user names; None for IDs without one. An InputError if it is not registered."""
    try:
        task = find_task(id)
        if task is None:
            find_spec(id)
    except Exception as error:  # importing a module may raise anything
        near = difflib.get_close_matches(truncate(id), gym.registry, 1)
        advice = f"Did you mean {near[0]!r}?" if near else "`vlmrm-gym tasks` lists those of this package."
        reason = "" if isinstance(error, gym.error.Error) else f" Importing it raised {truncate(repr(error))}."
        raise InputError(
            f"The ID must be a registered one, or module:ID. Received {short_repr(id)}.{reason} {advice}"
        ) from error
    return task
