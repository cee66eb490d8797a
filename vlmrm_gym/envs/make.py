"""Entry points that `gym.make` and `gym.make_vec` call for the registered IDs, and environments of any other ID."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from typing import Any, Never

import gymnasium as gym
import numpy as np
from gymnasium.core import ActType, ObsType
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import NameNotFound
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from vlmrm_gym._util.errors import close_on_error
from vlmrm_gym._util.validation import check_autoreset_mode, check_positive_integer, short_repr
from vlmrm_gym.envs.vector import VLMRewardVectorEnv
from vlmrm_gym.envs.wrapper import VLMReward
from vlmrm_gym.rewards.clip import TASK_GOALS, asks_for_task_goals
from vlmrm_gym.rewards.spec import RewardSpec
from vlmrm_gym.rewards.specification import recorded, resolve_reward
from vlmrm_gym.states import Quality, StateView
from vlmrm_gym.tasks import REGISTERED, Task
from vlmrm_gym.tasks.known_states import clear_goals

NUM_GOALS = 5
"""Goal states that are drawn of a task."""

MAX_EPISODE_STEPS_ERROR = (
    "`max_episode_steps` cannot be passed: the time limit of these environments is `episode_length`. "
    "Received {steps!r}. Pass episode_length={steps!r}."
)


class _Registered:
    """An environment of a registered ID. Its spec lists no wrappers: `gym.make(env.spec)` would apply them again."""

    @property
    def spec(self) -> EnvSpec | None:
        """A reward of one's own kind is in it so that it can be copied, and written as JSON that names its class."""
        spec: EnvSpec | None = self.unwrapped.spec  # pyright: ignore[reportAttributeAccessIssue]
        if spec is None or (reward := spec.kwargs.get("reward")) is None:
            return spec
        return replace(spec, kwargs={**spec.kwargs, "reward": recorded(reward)})


class _RegisteredTask(_Registered, VLMReward[ObsType, ActType]):
    """A scored environment of a registered ID."""


class _RegisteredVectorTask(_Registered, VLMRewardVectorEnv):
    """A scored vector environment of a registered ID."""


def make_task(*, task_id: str, episode_length: int, render_mode: str | None = None, **kwargs: Any) -> gym.Env[Any, Any]:
    """Entry point of every registered ID: an environment with its time limit and its reward.

    `task_id` is "module:ID" of the record. A `render_mode` of None is "rgb_array", which scoring needs; Gymnasium
    builds other modes on it. `kwargs` are of `VLMReward` and of the environment class (`textured`, `start_near_goal`).
    """
    caller = sys._getframe(1)
    if caller.f_code is gym.make.__code__ and (steps := caller.f_locals["max_episode_steps"]) is not None:
        # Gymnasium does not pass it on: it would put a second time limit around the reward.
        raise ValueError(MAX_EPISODE_STEPS_ERROR.format(steps=steps))
    task, env_kwargs, kwargs = _sort_kwargs(task_id, kwargs)
    env = make_base_env(task, episode_length, render_mode, **env_kwargs)
    with close_on_error([env]):
        return _RegisteredTask(env, **kwargs)


# Gymnasium reads this from an entry point: it then offers "human" and "rgb_array_list" through wrappers of its own.
make_task.metadata = {"render_modes": ["rgb_array"]}  # pyright: ignore[reportFunctionMemberAccess]


def make_vector_task(
    *,
    num_envs: int,
    task_id: str,
    episode_length: int,
    autoreset_mode: AutoresetMode | str | None = None,
    render_mode: str | None = None,
    **kwargs: Any,
) -> VLMRewardVectorEnv:
    """Vector entry point of every registered ID: as `make_task`, with keyword arguments of `VLMRewardVectorEnv`."""
    check_positive_integer("num_envs", num_envs)
    if "max_episode_steps" in kwargs:
        raise ValueError(MAX_EPISODE_STEPS_ERROR.format(steps=kwargs["max_episode_steps"]))
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f'`render_mode` must be "rgb_array", which is needed for scoring. Received {render_mode!r}.')
    task, env_kwargs, kwargs = _sort_kwargs(task_id, kwargs)
    settings = {"episode_length": episode_length, "autoreset_mode": autoreset_mode, **env_kwargs}
    envs = make_base_vector_env(task, num_envs, **settings)
    with close_on_error([envs]):
        return _RegisteredVectorTask(envs, **kwargs)


def _sort_kwargs(task_id: str, kwargs: dict[str, Any]) -> tuple[Task, dict[str, Any], dict[str, Any]]:
    """Find a task, and sort keyword arguments into those of its environment class and those of the reward.

    Gymnasium passes the registered keyword arguments along with the caller's: they are recognised by their values.
    `reward=` drops the registered prompt and baseline, goal images the prompt. A prompt in a list is the caller's.
    """
    if (task := find_task(task_id)) is None:
        raise ValueError(
            f"`task_id` must be an ID that `vlmrm_gym.tasks.register` knows. Received {task_id!r}. Call it in the "
            "module that defines the environment class, or in its package."
        )
    for name in {name for other in REGISTERED.values() for name in other.kwargs} - set(task.kwargs):
        if name in kwargs:
            rule = f"`{name}` is not for {task.env.rpartition(':')[2]}, which has no such parameter"
            raise ValueError(f"{rule}. Received {kwargs[name]!r}. Leave it out.")
    env_kwargs = {name: kwargs.pop(name) for name in task.kwargs if name in kwargs}
    draw = partial(draw_goals, task, camera=kwargs.get("camera"), quality=kwargs.get("quality", "fast"), **env_kwargs)
    reward, images = kwargs.get("reward"), kwargs.get("goal_images")
    if isinstance(reward, RewardSpec | Mapping):
        kwargs["reward"] = resolve_reward(reward).with_goal_images(draw)
    elif asks_for_task_goals(images):
        kwargs["goal_images"] = draw()
    if (reward is not None or images is not None) and kwargs.get("prompt") == task.prompt:
        kwargs["prompt"] = None
    if reward is not None and kwargs.get("baseline") == task.baseline:
        kwargs.pop("baseline", None)
    return task, env_kwargs, kwargs


def refuse_unregistered(*, base_id: str, **_: Any) -> Never:
    """Raise a NameNotFound with the remedy: the entry point of "VLMRM/Ant-v5" and its like, see `register_hints`."""
    raise NameNotFound(
        f"`id` must be of a task of this package. Received 'VLMRM/{base_id}'. Wrap {base_id}, with a prompt or reward "
        f'of your own: vlmrm_gym.VLMReward(gym.make("{base_id}", render_mode="rgb_array"), prompt="...").'
    )


def find_task(id: str) -> Task | None:
    """The record of an ID, with or without its version; None for IDs that `vlmrm_gym.tasks.register` does not know.

    "module:ID" imports the module first.
    """
    name = _import_module(id)
    return next((task for task in REGISTERED.values() if name in (task.id, task.id.rpartition("-v")[0])), None)


def is_function(id: str) -> bool:
    """Tell whether "module:name" is a function or class, and no ID: it is not registered, and may be a name in code."""
    name = _import_module(id)
    return name not in (id, *gym.registry) and name.replace(".", "_").isidentifier() and find_task(id) is None


def find_spec(id: str) -> EnvSpec:
    """The spec of a registered ID. "module:ID" imports the module first."""
    return gym.spec(_import_module(id))


def _import_module(id: str) -> str:
    """Import the module of "module:ID"; returns the ID alone."""
    module, _, name = id.rpartition(":")
    if module:
        importlib.import_module(module)
    return name


def make_env(
    id: str, *, episode_length: int | None = None, env_kwargs: Mapping[str, Any] | None = None, **kwargs: Any
) -> gym.Env[Any, Any]:
    """One environment of any registered ID, scored at every step.

    Args:
        id: An ID of this package, or of another one whose environments render; "module:ID" imports the module first.
            Or "package.module:function", a function or class that makes an environment.
        episode_length: Steps after which an episode is truncated, instead of the ID's own time limit.
        env_kwargs: Keyword arguments of another package's ID, passed to `gymnasium.make`, or of the function.
        kwargs: Keyword arguments of `VLMReward`. For an ID of this package also those of its environment class.

    Raises:
        ValueError: `env_kwargs` for an ID of this package, or a parameter that `VLMReward` rejects.
        gymnasium.error.Error: The ID is unknown.
    """
    if (task := find_task(id)) is not None:
        return gym.make(task.id, **task_kwargs(task, episode_length, env_kwargs), **kwargs)
    env = make_external_env(id, episode_length, env_kwargs)
    with close_on_error([env]):
        return VLMReward(env, **kwargs)


def make_vector_env(
    id: str | Callable[..., gym.Env[Any, Any]],
    num_envs: int,
    *,
    autoreset_mode: AutoresetMode | str | None = None,
    episode_length: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> VectorEnv[Any, Any, Any]:
    """A scored vector environment of any registered ID, or of what a class or a function makes.

    The arguments are those of `make_env` and `make_vector_task`; `kwargs` are of `VLMRewardVectorEnv`, and for an ID of
    this package also of its environment class.
    """
    if isinstance(id, str) and (task := find_task(id)) is not None:
        kwargs |= task_kwargs(task, episode_length, env_kwargs)
        return gym.make_vec(task.id, num_envs, autoreset_mode=autoreset_mode, **kwargs)
    check_positive_integer("num_envs", num_envs)
    make = partial(make_external_env, id, episode_length, env_kwargs)
    return VLMRewardVectorEnv([make] * num_envs, autoreset_mode=autoreset_mode, **kwargs)


def make_external_env(
    id: str | Callable[..., gym.Env[Any, Any]],
    episode_length: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> gym.Env[Any, Any]:
    """An environment of another package's ID, or of what a class or a function makes, with its own reward."""
    if episode_length is not None:
        check_positive_integer("episode_length", episode_length)
    if isinstance(id, str) and is_function(id):
        id = resolve_name(id)
    if not isinstance(id, str):
        render = {"render_mode": "rgb_array"} if "render_mode" in inspect.signature(id).parameters else {}
        env = id(**{**render, **(env_kwargs or {})})
        return env if episode_length is None else TimeLimit(env, episode_length)
    return gym.make(id, render_mode="rgb_array", max_episode_steps=episode_length, **check_env_kwargs(env_kwargs or {}))


def check_env_kwargs(env_kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keyword arguments of another package's environment. A ValueError if one is set here."""
    for name in {"id", "render_mode", "max_episode_steps"} & set(env_kwargs):
        remedy = "Set `episode_length` instead." if name == "max_episode_steps" else "Leave it out: it is set here."
        raise ValueError(f"`env_kwargs` cannot have {name!r}. Received {dict(env_kwargs)!r}. {remedy}")
    return env_kwargs


def task_kwargs(task: Task, episode_length: int | None, env_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Keyword arguments of `gym.make` for a task of this package."""
    if env_kwargs:
        raise ValueError(
            f"`env_kwargs` is for IDs of other packages. Received {short_repr(env_kwargs)} for {task.id}. "
            "Pass them as keyword arguments."
        )
    return {} if episode_length is None else {"episode_length": episode_length}


def make_base_env(
    task: Task, episode_length: int, render_mode: str | None = None, /, **env_kwargs: Any
) -> gym.Env[Any, Any]:
    """An environment of a task with its time limit and its own reward; `env_kwargs` go before the task's own."""
    check_positive_integer("episode_length", episode_length)
    make = resolve_name(task.env)
    return TimeLimit(make(render_mode=render_mode or "rgb_array", **{**task.kwargs, **env_kwargs}), int(episode_length))


def make_base_vector_env(
    task: Task,
    num_envs: int,
    /,
    *,
    episode_length: int,
    autoreset_mode: AutoresetMode | str | None = None,
    **env_kwargs: Any,
) -> VectorEnv[Any, Any, Any]:
    """A vector environment of a task with its time limit and its own rewards."""
    mode = AutoresetMode.NEXT_STEP if autoreset_mode is None else check_autoreset_mode(autoreset_mode)
    if task.vector_env is None:
        make = partial(make_base_env, task, episode_length, **env_kwargs)
        return SyncVectorEnv([make] * num_envs, autoreset_mode=mode)
    env_kwargs = {**task.kwargs, **env_kwargs}
    return resolve_name(task.vector_env)(num_envs, episode_length=episode_length, autoreset_mode=mode, **env_kwargs)


def draw_goals(
    task: Task, /, *, camera: Any = None, quality: Quality = "fast", **env_kwargs: Any
) -> list[NDArray[np.uint8]]:
    """Draw states of a task's goal, from each camera, at the environment's own size: uint8 (H, W, 3) each.

    A ValueError says that no goals are known of the task, or that the camera does not fit.
    """
    states = task.make_states()
    goals = np.empty(0) if states is None else clear_goals(states, NUM_GOALS)
    if not len(goals):
        raise ValueError(
            f"`goal_images`={TASK_GOALS!r} is for tasks whose goals are known. Received {task.id}. Pass pictures."
        )
    env = make_base_env(task, task.episode_length, **env_kwargs)
    with closing(env), closing(StateView(env, camera, quality)) as view:
        return list(view.draw_views(goals))
