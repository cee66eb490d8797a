"""What is checked: an environment, what is known of its success, and all combinations of settings of its reward."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import yaml
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from vlmrm_gym.audit.labelled_states import LabelledStates
from vlmrm_gym.audit.results import Choice
from vlmrm_gym.audit.trajectory_search import action_decoder
from vlmrm_gym.capture import StateView, is_drawn_from_states
from vlmrm_gym.envs.states import TaskStates
from vlmrm_gym.errors import InputError, check_values
from vlmrm_gym.rewards.clip_options import CLIPFields
from vlmrm_gym.rewards.custom import find_callable
from vlmrm_gym.rewards.specification import CLIP, RewardSpec
from vlmrm_gym.rewards.views import CombineViews
from vlmrm_gym.rollouts.environments import find_named_task, make_unscored_env
from vlmrm_gym.tasks import Task
from vlmrm_gym.training.spec_fields import spec_settings
from vlmrm_gym.validation import check_positive_integer, short_repr, truncate

if TYPE_CHECKING:
    from vlmrm_gym.cli.check import Check

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
    success_fn: Callable[[Any], Any] | None
    """The user's function from states to success."""
    has_labels: bool = False
    """Whether labels of rollouts say what succeeds, in place of the task's own function."""
    choices: Sequence[Choice] = field(default=())
    rewards: Mapping[str, RewardSpec] = field(default_factory=dict)
    """Those that are not of prompts, by the `model` of each choice, which is their label."""
    cameras: Mapping[str, Any] = field(default_factory=dict)
    """The value of `camera` by the name of each choice."""

    def task_states(self, env: gym.Env[Any, Any], seen: np.ndarray) -> TaskStates | None:
        """What is known of the states; None if they cannot be made.

        Args:
            env: The environment.
            seen: States of rollouts.
        """
        if self.task is not None and self.task.states is not None and self.success_fn is None:
            task = self.task.make_states() if is_drawn_from_states(env) else None
            return LabelledStates(task) if task is not None and self.has_labels else task
        model = _drawn_model(env)
        if model is None:
            return None
        from vlmrm_gym.envs.mujoco_states import MuJoCoStates

        return MuJoCoStates(model, seen, self.success_fn)


def find_subject(command: "Check") -> Subject:
    """Find what a command is about, and see that all its settings can be used, before anything is scored.

    Raises:
        InputError: A setting or the environment cannot be used.
    """
    _check_settings(command)
    task = find_named_task(command.id) if command.id else None
    looks = _looks(command, task)
    cameras: dict[str, Any] = {name: _parse_camera(name) for name in command.camera}
    if not cameras:
        cameras = {"own": None if task is None else task.camera}

    def make_env(look: str | None) -> gym.Env[Any, Any]:
        return make_unscored_env(command.id, command.env, textured=None if look is None else look == "textured")

    success_fn = None if command.success is None else checked_success_fn(command.success)
    with closing(make_env(looks[0])) as env:
        if success_fn is not None:
            _try_success_fn(success_fn, env, command)
        if command.reach:
            action_decoder(env.action_space)
            if task is None and _drawn_model(env) is None:
                raise InputError(
                    "`reach` leads to exploits, and for this environment there is no search for those. Leave it out."
                )
        combinations = _combinations(command, {name: _count_views(env, camera) for name, camera in cameras.items()})
    return Subject(
        name=(command.id or str(command.env)).split("/")[-1].replace(":", "."),
        make_env=make_env,
        task=task,
        success_fn=success_fn,
        has_labels=command.labels is not None,
        choices=_choices(command, task, looks, combinations),
        rewards=command.specifications(task) if command.reward else {},
        cameras=cameras,
    )


def _check_settings(command: "Check") -> None:
    if (command.id is None) == (command.env is None):
        raise InputError("Pass an ID or --env, one of the two, such as: vlmrm-gym check VLMRM/CartPole-v1")
    if command.labels is not None and command.rollouts is None:
        raise InputError("`labels` needs --rollouts, the dataset whose steps it labels. Make one: vlmrm-gym dataset")
    if command.labels is not None and command.success is not None:
        raise InputError("`labels` and `success` cannot both be passed: both say which states succeed. Pass one.")
    if command.rollouts is not None and command.run is not None:
        raise InputError("`run` and `rollouts` cannot both be passed. Play the run into the dataset: --policy RUN.")
    for name in ("prompt", "alpha", "model", "camera", "combine_views"):
        check_values(name, getattr(command, name), may_be_empty=name in ("prompt", "camera"))
    from vlmrm_gym.rewards.models import resolve_device
    from vlmrm_gym.rewards.sources import parse_model_name

    try:
        check_positive_integer("effort", command.effort)
        resolve_device(command.device)
        for model in command.model:
            parse_model_name(model)
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from error
    if not 0 <= command.seed < 2**31:
        raise InputError(f"`seed` must be from 0 to {2**31 - 1}. Received {command.seed}.")


def _looks(command: "Check", task: Task | None) -> Sequence[str | None]:
    if task is not None and "textured" in task.kwargs:
        return LOOKS[command.textured]
    if command.textured is not None:
        raise InputError(f"`textured` is for tasks with two looks. Received {command.textured!r}. Leave it out.")
    return (None,)


def _combinations(command: "Check", num_views: Mapping[str, int]) -> Mapping[str, Sequence[str | None]]:
    """The values of `combine_views` by camera; None for a camera that has one view.

    Args:
        command: The settings.
        num_views: Numbers of views by the name of the camera.
    """
    if max(num_views.values()) == 1 and command.combine_views != ("min",):
        raise InputError(
            f"`combine_views` is for several views. Received {', '.join(map(repr, command.combine_views))} for one. "
            "Leave it out, or pass several cameras, such as --camera front-side."
        )
    for how, views in product(command.combine_views, num_views.values()):
        if views > 1:
            try:
                CombineViews(how, views)
            except ValueError as error:
                raise InputError(str(error)) from error
    return {name: command.combine_views if views > 1 else (None,) for name, views in num_views.items()}


def _choices(
    command: "Check",
    task: Task | None,
    looks: Sequence[str | None],
    combinations: Mapping[str, Sequence[str | None]],
) -> Sequence[Choice]:
    """All combinations, those of the first values first."""
    if command.reward:
        return [
            Choice(prompt=label, baseline=None, alpha=0.0, model=label, look=look, camera=camera, combine_views=combine)
            for label, look, camera in product(command.specifications(task), looks, combinations)
            for combine in combinations[camera]
        ]
    prompts = command.prompt or ((task.prompt,) if task is not None and task.prompt else ())
    if not prompts:
        raise InputError('`prompt` must be given: what the agent should do. Pass --prompt "a text".')
    baseline = command.baseline
    if baseline is None and task is not None:
        baseline = task.baseline
    choices = []
    for model, prompt, alpha, look, camera in product(command.model, prompts, command.alpha, looks, combinations):
        try:
            given = spec_settings(CLIPFields, command)
            CLIP(**{**given, "prompt": prompt, "baseline": baseline, "alpha": alpha, "model": model})
        except (TypeError, ValueError) as error:
            raise InputError(str(error)) from error
        choices += [
            Choice(
                prompt=prompt,
                baseline=baseline,
                alpha=alpha,
                model=model,
                look=look,
                camera=camera,
                combine_views=combine,
            )
            for combine in combinations[camera]
        ]
    return choices


def _count_views(env: gym.Env[Any, Any], camera: Any) -> int:
    try:
        with closing(StateView(env, camera, pin=False)) as view:
            return view.num_views
    except (DependencyNotInstalled, ValueError) as error:
        raise InputError(str(error)) from error


def _parse_camera(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"`camera` cannot be read: {short_repr(text)}. Pass a name, or {{azimuth: 90}}.") from error


def checked_success_fn(path: str) -> Callable[[NDArray[np.float64]], NDArray[np.bool_]]:
    """The user's function from states to success, which raises an `InputError` if it does not keep to the rule.

    Args:
        path: "package.module:function".

    Raises:
        InputError: It does not exist.
    """
    try:
        function = find_callable(path, "success")
    except ValueError as error:
        raise InputError(str(error)) from error
    rule = "`success` must map states, float64 (N, S), to bool (N,)"

    def success_fn(states: NDArray[np.float64]) -> NDArray[np.bool_]:
        try:
            success = np.asarray(function(states.copy()))
        except Exception as error:
            raise InputError(f"{rule}. {path!r} raised {type(error).__name__}: {truncate(str(error))}") from error
        if success.shape != (len(states),) or success.dtype != bool:
            raise InputError(f"{rule}. {path!r} returned {success.dtype} {success.shape} for states {states.shape}.")
        return success

    return success_fn


def _try_success_fn(success_fn: Callable[[NDArray[np.float64]], Any], env: gym.Env[Any, Any], command: "Check") -> None:
    """Call the function with the initial state, twice.

    Raises:
        InputError: The function does not keep to its rule, or states of this environment cannot be made.
    """
    if _drawn_model(env) is None:
        raise InputError(
            "`success` is for MuJoCo environments that are drawn from their states. Received "
            f"{command.success!r} for {command.id or command.env}. Label rollouts: vlmrm-gym dataset, then --labels."
        )
    env.reset(seed=command.seed)
    with closing(StateView(env, pin=False)) as view:
        view.reset()
        state, _ = view.capture()
    success_fn(np.stack([state, state]))


def _drawn_model(env: gym.Env[Any, Any]) -> Any:
    """The `mujoco.MjModel` of an environment that is drawn from its states; None for any other one."""
    import mujoco

    model = getattr(env.unwrapped, "model", None)
    return model if isinstance(model, mujoco.MjModel) and is_drawn_from_states(env) else None
