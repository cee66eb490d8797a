"""Settings of a check: an environment, its success, and all combinations of rewards and views."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError, as_input_error
from vlmrm_gym._util.validation import truncate
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.envs.make import draw_goals
from vlmrm_gym.rewards.heads import CombineViews
from vlmrm_gym.rewards.own import find_callable
from vlmrm_gym.rewards.sources import default_model
from vlmrm_gym.rewards.spec import RewardSpec
from vlmrm_gym.states import StateView, is_drawn_from_states
from vlmrm_gym.tasks import Task
from vlmrm_gym.tasks.known_states import Rows, TaskStates
from vlmrm_gym.tools.check.results import Candidate

LOOKS_BACK = (
    "Progress and success look at the states before. They were checked by the scores that they are made of: a state "
    "for itself has no progress."
)

SuccessFunction = Callable[[NDArray[np.float64]], NDArray[np.bool_]]
"""From states, float64 (N, S), to whether they succeed, bool (N,)."""


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """An environment, what is known of its success, and how much is searched."""

    name: str
    """The environment's ID, or the path of the function that makes it."""
    make_env: Callable[[bool | None], gym.Env[Any, Any]]
    """Makes the environment, from `textured`; None: the environment's own."""
    task: Task | None = None
    success_fn: SuccessFunction | None = None
    """In place of the task's own; for MuJoCo environments that are drawn from their states."""
    rollouts: Sequence[Trajectory] | None = None
    """In place of new ones; the headline measures are then of them."""
    labels: NDArray[np.bool_] | None = None
    """bool (N,): which states of these rollouts succeed; None: as the task or `success_fn` says."""
    seed: int = 0
    device: str = "auto"
    threshold: float | Literal["auto"] | None = None
    """Of a `Success`, whose errors are measured; "auto" proposes one."""

    def task_states(self, env: gym.Env[Any, Any], seen: Rows) -> TaskStates | None:
        """Make the `TaskStates`, from states of rollouts, float64 (N, S); None if they cannot be made."""
        if self.task is not None and self.task.states is not None and self.success_fn is None:
            return self.task.make_states() if is_drawn_from_states(env) else None
        if (model := _drawn_model(env)) is None:
            return None
        from vlmrm_gym.tasks.mujoco_states import MuJoCoStates

        return MuJoCoStates(model, seen, self.success_fn)


def find_candidates(
    settings: AuditSettings,
    rewards: Mapping[str, RewardSpec],
    *,
    cameras: Mapping[str, Any],
    combine_views: Sequence[str] = ("min",),
    textured: Sequence[bool | None] = (None,),
) -> Sequence[Candidate]:
    """Make all combinations to compare, those of the first values first. Raises an `InputError`.

    The environment is made once, its success function is called with the initial state, and nothing is scored. Rewards
    and cameras are by the names that tables show. A camera with one view has no combinations.
    """
    with closing(settings.make_env(textured[0])) as env:
        if settings.success_fn is not None:
            if _drawn_model(env) is None:
                raise InputError(
                    "`success` is for MuJoCo environments that are drawn from their states. Received "
                    f"{settings.name}. Label rollouts: vlmrm-gym dataset, then --labels."
                )
            env.reset(seed=settings.seed)
            with closing(StateView(env)) as view:
                view.reset()
                settings.success_fn(np.stack([view.capture()[0]] * 2))
        num_views = {name: _count_views(env, camera) for name, camera in cameras.items()}
        rewards = {label: reward.with_model(default_model(env)) for label, reward in rewards.items()}
    if max(num_views.values()) == 1 and tuple(combine_views) != ("min",):
        raise InputError(
            f"`combine_views` is for several views. Received {', '.join(map(repr, combine_views))} for one. "
            "Leave it out, or pass several cameras, such as --camera front-side."
        )
    for how, views in product(combine_views, num_views.values()):
        if views > 1:
            with as_input_error():
                CombineViews(how, views)
    candidates: list[Candidate] = []
    for (label, reward), look, (name, camera) in product(rewards.items(), textured, cameras.items()):
        stateless = reward.stateless()
        drawn = stateless.with_goal_images(partial(_draw_goals, settings, camera, look))
        candidates += [
            Candidate(
                name=label,
                reward=drawn,
                textured=look,
                camera_name=name,
                camera=camera,
                combine_views=combine,
                note=LOOKS_BACK if stateless != reward else "",
            )
            for combine in (combine_views if num_views[name] > 1 else (None,))
        ]
    return candidates


def _draw_goals(settings: AuditSettings, camera: Any, textured: bool | None) -> list[NDArray[np.uint8]]:
    if settings.task is None:
        raise InputError(f'`goal_images`="task" is for registered tasks. Received {settings.name}. Pass pictures.')
    with as_input_error(DependencyNotInstalled):
        look: dict[str, Any] = {} if textured is None else {"textured": textured}
        return draw_goals(settings.task, camera=camera, **look)


def _count_views(env: gym.Env[Any, Any], camera: Any) -> int:
    with as_input_error(DependencyNotInstalled), closing(StateView(env, camera)) as view:
        return view.num_views


def find_success_fn(path: str) -> SuccessFunction:
    """Find the user's function from states to success, which raises an `InputError` if it does not keep to the rule."""
    with as_input_error():
        function = find_callable(path, "success")
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


def _drawn_model(env: gym.Env[Any, Any]) -> Any:
    """Find the `mujoco.MjModel` of an environment that is drawn from its states; None for any other one."""
    import mujoco

    model = getattr(env.unwrapped, "model", None)
    return model if isinstance(model, mujoco.MjModel) and is_drawn_from_states(env) else None
