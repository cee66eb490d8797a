"""What is checked: an environment, what is known of its success, and all combinations of settings of its reward."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import yaml

from vlmrm_gym.check import InputError
from vlmrm_gym.check.environments import make_unscored_env
from vlmrm_gym.check.results import Choice
from vlmrm_gym.check.task_states import TaskStates
from vlmrm_gym.checks import check_positive_integer, short_repr
from vlmrm_gym.registration import find_task
from vlmrm_gym.rewards.custom import find_callable
from vlmrm_gym.rewards.specification import CLIP
from vlmrm_gym.tasks import Task

if TYPE_CHECKING:
    from vlmrm_gym.check.command import Check

LOOKS: Mapping[str | None, Sequence[str]] = {
    None: ("textured",),
    "yes": ("textured",),
    "no": ("plain",),
    "both": ("textured", "plain"),
}
"""Looks by the value of `--textured`."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An environment and the combinations of settings to compare."""

    name: str
    """For titles and folders."""
    make_env: Callable[[str | None], gym.Env[Any, Any]]
    """Makes the environment in a look."""
    task: Task | None
    """The task of this package, if it is one."""
    judge: Callable[[Any], Any] | None
    """The user's function from states to success."""
    choices: Sequence[Choice] = field(default=())
    cameras: Mapping[str, Any] = field(default_factory=dict)
    """The value of `camera` by the name of each choice."""

    def task_states(self, env: gym.Env[Any, Any], seen: np.ndarray) -> TaskStates | None:
        """What is known of the states; None if they cannot be made.

        Args:
            env: The environment.
            seen: States of rollouts.
        """
        import mujoco

        from vlmrm_gym.capture import is_drawn_from_states

        if not is_drawn_from_states(env):
            return None
        if self.task is not None and self.judge is None:
            return _own_states(self.task)
        model = getattr(env.unwrapped, "model", None)
        if not isinstance(model, mujoco.MjModel):
            return None
        from vlmrm_gym.check.task_states.mujoco import MuJoCoStates

        return MuJoCoStates(model, seen, self.judge)


def find_subject(command: "Check") -> Subject:
    """Find what a command is about.

    Raises:
        InputError: A setting cannot be used.
    """
    _check_settings(command)
    task = find_task(command.id) if command.id else None
    if command.success is not None and task is not None and task.env_cls != "Humanoid":
        raise InputError(f"`success` is for MuJoCo environments. Received {command.success!r} for {task.id}.")
    choices, cameras = _choices(command, task)
    return Subject(
        name=(command.id or str(command.env)).split("/")[-1].replace(":", "."),
        make_env=lambda look: make_unscored_env(
            command.id, command.env, textured=None if look is None else look == "textured"
        ),
        task=task,
        judge=None if command.success is None else _find(command.success, "success"),
        choices=choices,
        cameras=cameras,
    )


def _check_settings(command: "Check") -> None:
    if (command.id is None) == (command.env is None):
        raise InputError("Pass an ID or --env, one of the two, such as: vlmrm-gym check VLMRM/CartPole-v1")
    if command.labels is not None and command.rollouts is None:
        raise InputError("`labels` needs --rollouts, the dataset whose steps it labels. Make one: vlmrm-gym dataset")
    if command.rollouts is not None and command.run is not None:
        raise InputError("`run` and `rollouts` cannot both be passed. Play the run into the dataset: --policy RUN.")
    for name in ("prompt", "alpha", "model", "camera", "combine_views"):
        values = getattr(command, name)
        if len(set(values)) < len(values):
            raise InputError(f"Each `{name}` must be a different one. Received {', '.join(map(repr, values))}.")
    try:
        check_positive_integer("effort", command.effort)
    except ValueError as error:
        raise InputError(str(error)) from error
    if command.seed < 0:
        raise InputError(f"`seed` must be 0 or more. Received {command.seed}.")


def _choices(command: "Check", task: Task | None) -> tuple[Sequence[Choice], Mapping[str, Any]]:
    """All combinations, those of the first values first; and cameras by name."""
    prompts = command.prompt or ((task.prompt,) if task is not None and task.prompt else ())
    if not prompts:
        raise InputError('`prompt` must be given: what the agent should do. Pass --prompt "a text".')
    baseline = command.baseline or (None if task is None else task.baseline)
    looks: Sequence[str | None] = LOOKS[command.textured]
    if task is None or "textured" not in task.kwargs:
        if command.textured is not None:
            raise InputError(f"`textured` is for tasks with two looks. Received {command.textured!r}. Leave it out.")
        looks = (None,)
    cameras: dict[str, Any] = {name: _parse_camera(name) for name in command.camera}
    if not cameras:
        cameras = {"own": None if task is None else task.kwargs.get("camera")}
    choices = []
    for model, prompt, alpha, look, camera, combine in product(
        command.model, prompts, command.alpha, looks, cameras, command.combine_views
    ):
        try:
            CLIP(prompt=prompt, baseline=baseline, alpha=alpha, model=model)
        except (TypeError, ValueError) as error:
            raise InputError(str(error)) from error
        choices.append(
            Choice(
                prompt=prompt,
                baseline=baseline,
                alpha=alpha,
                model=model,
                look=look,
                camera=camera,
                combine_views=combine,
            )
        )
    return choices, cameras


def _parse_camera(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"`camera` cannot be read: {short_repr(text)}. Pass a name, or {{azimuth: 90}}.") from error


def _find(path: str, parameter: str) -> Callable[..., Any]:
    try:
        return find_callable(path, parameter)
    except ValueError as error:
        raise InputError(str(error)) from error


def _own_states(task: Task) -> TaskStates:
    if task.env_cls == "Humanoid":
        from vlmrm_gym.check.task_states.humanoid import HumanoidStates

        return HumanoidStates(task.kwargs["task"])
    from vlmrm_gym.check.task_states.classic_control import CartPoleStates, MountainCarStates

    return CartPoleStates() if task.env_cls == "CartPole" else MountainCarStates()
