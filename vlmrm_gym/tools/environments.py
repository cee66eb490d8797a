"""Environments that a command line names, without a reward of a model."""

import difflib
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pkgutil import resolve_name
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError, as_input_error, close_on_error
from vlmrm_gym._util.validation import check_env, short_repr, truncate
from vlmrm_gym.envs.make import find_spec, find_task, is_function, make_base_env, make_external_env, task_kwargs
from vlmrm_gym.states import StateView
from vlmrm_gym.states.drawing import Drawings
from vlmrm_gym.states.states import States
from vlmrm_gym.states.view import check_renders
from vlmrm_gym.tasks import Task


def make_unscored_env(
    id: Any, env_kwargs: Mapping[str, Any] | None = None, episode_length: int | None = None, *, textured: Any = None
) -> gym.Env[Any, Any]:
    """Make the environment that a user names, without a reward of a model; an InputError if it cannot be made.

    It is that of a registered ID ("module:ID" imports the module first), or of "package.module:function", a function or
    class; from Python also the function or class itself, or an environment, which is not closed. `env_kwargs` are of
    the function, or of another package's ID. `textured` is for IDs of this package. None: the environment's own.
    """
    task = find_named_task(id)
    try:
        if task is not None:
            look = {} if textured is None else {"textured": textured}
            length = task_kwargs(task, episode_length, env_kwargs).get("episode_length", task.episode_length)
            return make_base_env(task, length, **look)
        make = (lambda: _KeptOpen(id)) if isinstance(id, gym.Env) else id
        env = make_external_env(make, episode_length, env_kwargs)
        check_env(env)
        check_renders(env)
        return env
    except Exception as error:  # as may the environment's constructor
        reason = truncate(str(error) or repr(error), 1_000)
        raise InputError(f"The environment {short_repr(id)} cannot be used: {reason}") from error


class NamedEnv(ExitStack):
    """The environment that a user names, without a reward of a model, and its view. A context manager closes both.

    `camera` is the task's, if it is None.
    """

    def __init__(self, id: Any, env_kwargs: Any = None, camera: Any = None, episode_length: int | None = None) -> None:
        super().__init__()
        self.task = find_named_task(id)
        self.camera = self.task.camera if camera is None and self.task is not None else camera
        with close_on_error([self]):
            self.env = self.enter_context(closing(make_unscored_env(id, env_kwargs, episode_length)))
            with as_input_error(DependencyNotInstalled):
                self.view = self.enter_context(closing(StateView(self.env, self.camera)))
            renderer = self.enter_context(closing(self.view.make_renderer(lambda *own: own)))
            self._drawings = self.enter_context(closing(Drawings(renderer)))

    def draw(self, states: States, size: Any = None, views: Any = None) -> NDArray[np.uint8]:
        """Draw states at the environment's own size, or another: see `Pair`."""
        return self._drawings.draw(states, size, views)


class _KeptOpen(gym.Wrapper[Any, Any, Any, Any]):
    """Leaves the environment open: it is its owner's to close."""

    def close(self) -> None:
        """Do nothing."""


def find_named_task(id: Any) -> Task | None:
    """The record of the environment that a user names or passes; None if it has none. Raises an InputError."""
    if not isinstance(id, str | None):
        return None
    name = id or ""
    try:
        task = find_task(name)
        if task is None:
            resolve_name(name) if is_function(name) else find_spec(name)
    except Exception as error:  # importing a module may raise anything
        near = difflib.get_close_matches(truncate(name), gym.registry, 1)
        advice = f"Did you mean {near[0]!r}?" if near else "`vlmrm-gym tasks` lists those of this package."
        if not isinstance(error, gym.error.Error):
            advice = f"Importing it raised {truncate(repr(error))}."
        rule = "`id` must be a registered ID, module:ID or package.module:function"
        raise InputError(f"{rule}. Received {short_repr(id)}. {advice}") from error
    return task


def has_path(value: Any) -> bool:
    """Tell whether one of the texts in a value may be "module:name", which an environment may import."""
    if isinstance(value, dict):
        return any(map(has_path, (*value, *value.values())))
    return any(map(has_path, value)) if isinstance(value, list) else isinstance(value, str) and ":" in value
