"""The states of a vector environment: the one that was passed, or one made of a list of functions."""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from vlmrm_gym._util.errors import close_on_error
from vlmrm_gym._util.validation import check_that, find_metadata, find_time_limit, short_repr
from vlmrm_gym.infos import SCENE_UPDATE_KEY, STATE_KEY
from vlmrm_gym.states.drawing import FrameStore, check_frame
from vlmrm_gym.states.scene_changes import SceneChange, SceneUpdate
from vlmrm_gym.states.states import EnvRenderer, Quality, States
from vlmrm_gym.states.view import StateView, check_renders
from vlmrm_gym.states.wrapper import AutoCaptureState, CaptureState

Mask = NDArray[np.bool_]
_REMEDY = "Put VLMRewardVectorEnv directly around the environments."


class VectorCapture:
    """Reads the states of a vector environment, whose environments render arrays, after its steps.

    There are three cases:

    - The environments of a `SyncVectorEnv` are wrapped in `CaptureState`.
    - A vector environment whose metadata contain `STATE_KEY` (its environments are wrapped in `CaptureState` already,
      or it is `HumanoidVectorEnv`) delivers states in its infos.
    - Of any other vector environment the rendered frames are the states.

    `attach` puts the wrappers in place. `mode` says when an environment that has ended is reset; for `camera` and
    `quality` see `make_renderer`.
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], mode: AutoresetMode, camera: Any = None, quality: Quality = "fast"
    ) -> None:
        self._env: VectorEnv[Any, Any, Any] = env
        self._base: Any = env.unwrapped
        self._shared_view: StateView | None = None
        """The view of `HumanoidVectorEnv`, whose environments all have the same scene."""
        self._wrapped: list[CaptureState] = []
        """The environments of a `SyncVectorEnv`, wrapped."""
        captures = find_metadata(env, STATE_KEY)
        if captures and hasattr(self._base, "single_env"):
            self._shared_view = StateView(self._base.single_env, camera, quality)
        elif isinstance(self._base, SyncVectorEnv):
            self._wrapped = [_wrap(one, camera, quality) for one in self._base.envs]
        elif camera is not None or quality != "fast":
            raise ValueError(
                f"`camera` and `quality` cannot be passed on to the environments of {self._base}. Received "
                f"{short_repr(camera)} and {quality!r}. Wrap each in `CaptureState(env, camera=..., quality=...)`."
            )
        else:
            check_renders(env)
            if captures and not all(metadata.get(STATE_KEY) for metadata in self._base.call("metadata")):
                raise ValueError("`env` must have all of its environments wrapped in `CaptureState`, or none.")
        self._views = self._wrapped if self._shared_view is None else [self._shared_view]
        self._captures = isinstance(self._base, SyncVectorEnv) or bool(captures)
        if not self._captures and mode == AutoresetMode.SAME_STEP:
            raise ValueError(
                f"`autoreset_mode` cannot be same-step for {env}: what it renders after an episode's end is the next "
                "episode's first frame. Use next-step, or wrap its environments in `vlmrm_gym.CaptureState`."
            )
        self._changes: list[SceneChange | None] = [None] * env.num_envs
        """How the scene of each environment differs from the renderer's."""
        self._num_changes = [0] * env.num_envs
        # At the first reset: an environment cannot render before.
        self._check_frames = not self._captures or all(self._call("stores_frames"))

    @property
    def num_views(self) -> int:
        """Number of cameras that draw a state; a ValueError if the environments' differ."""
        if not self._captures:
            return 1
        counts = self._call("num_views")
        if len(set(counts)) > 1:
            raise ValueError(f"`env` must have environments with equally many cameras. Received {list(counts)}.")
        return counts[0]

    @property
    def resets_some(self) -> bool:
        """Whether `reset` keeps to `options["reset_mask"]`, as far as this is known here."""
        return isinstance(self._base, SyncVectorEnv | AsyncVectorEnv) or self._shared_view is not None

    @property
    def time_limit(self) -> int | None:
        """Steps after which the environments truncate an episode, as far as this is known here."""
        limits = [getattr(self._base, "episode_length", None), *map(find_time_limit, self._wrapped)]
        return min((limit for limit in limits if limit is not None), default=None)

    def make_renderer(self, render_size: Callable[[int, int], tuple[int, int]]) -> EnvRenderer:
        """Make the renderer of the states that all environments capture from now on."""
        if not self._captures:
            return FrameStore()
        first, *others = self._call("make_renderer", render_size)
        pickled = pickle.dumps(first)
        if any(pickle.dumps(other) != pickled for other in others):
            self._call("use_renderer", first)
        return first

    def attach(self) -> None:
        """Put the wrappers in place. Call this when nothing can fail any more."""
        if self._wrapped:
            self._base.envs = self._wrapped

    def reset(self, mask: Mask) -> None:
        """Call this after every reset of the environments in a mask by the user."""
        if self._shared_view is not None:
            self._shared_view.reset()
        if self._check_frames and mask.all():
            shapes = [frame.shape for frame in self._frames()]
            if len(set(shapes)) > 1:
                raise ValueError(f"`env` must have environments that render frames of one size. Received {shapes}.")
            self._check_frames = False

    def first_states(self, mask: Mask) -> States:
        """The states of environments in a mask, bool (num_envs,), which have just been reset; elsewhere undefined."""
        if not self._captures:
            return States(np.stack(self._frames()))
        if self._shared_view is not None:
            return States.of(self._base.states, self._shared_changes())
        captured, reset = self._call("first_state"), np.flatnonzero(mask).tolist()
        if any(captured[i] is None for i in reset):
            raise RuntimeError(f"A wrapper steps environments in their reset. {_REMEDY}")
        like, _ = captured[reset[0]]
        rows, changes = np.zeros((len(mask), *like.shape), dtype=like.dtype), [None] * len(mask)
        for i in reset:
            rows[i], changes[i] = captured[i]
        return States.of(rows, changes)

    def render(self) -> Any:
        """Render what the model sees, but at the environments' own size: a tuple of uint8 (H, V * W, 3)."""
        if self._shared_view is None:
            return self._env.render()
        return tuple(self._shared_view.draw(self._base.states, self._shared_changes()))

    def close(self) -> None:
        """Free the graphics resources. The environments stay open."""
        if self._shared_view is not None:
            self._shared_view.close()

    def capture(self, expected: Mask, infos: dict[str, Any]) -> tuple[States, dict[str, Any]]:
        """Capture the states that a step led to, and its infos without them.

        `expected`, bool (num_envs,), is where there is one: not where the step only resets. States are undefined
        elsewhere. A RuntimeError if a wrapper dropped states or scene updates.
        """
        if not self._captures:
            return States(np.stack(self._frames())), infos
        infos, states, stepped = self._take_states(infos)
        if "final_info" in infos:  # of environments that were reset in the same step
            infos["final_info"], final_states, final = self._take_states(infos["final_info"])
            if states is None:
                states = final_states
            elif final_states is not None:
                states = np.where(final.reshape(-1, *(1,) * (states.ndim - 1)), final_states, states)
            stepped = stepped | final
        if not np.array_equal(stepped, expected):
            raise RuntimeError(
                f"Environments {np.flatnonzero(expected)} were stepped, but states came from "
                f'{np.flatnonzero(stepped)}: a wrapper between them and VLMRewardVectorEnv drops `infos["vlm_state"]`, '
                f"or scores them already. {_REMEDY}"
            )
        if states is None:  # all have only been reset
            states = np.empty((len(expected), 0))
        changes = self._changes if self._shared_view is None else self._shared_changes()
        return States.of(states, changes), infos

    def _shared_changes(self) -> Sequence[SceneChange | None]:
        """Compare the shared scene with the renderer's, for each environment."""
        assert self._shared_view is not None
        change = self._shared_view.capture()[1]
        if change is not None and change.frame is not None:
            raise RuntimeError(
                f"{self._env} has one viewer for all of its environments, and it shows more than their states, such as "
                "markers or other options. Put the viewer's settings back, or make the environments one by one."
            )
        return [change] * self._env.num_envs

    def _take_states(self, infos: dict[str, Any]) -> tuple[dict[str, Any], Any, Any]:
        """Take states out of infos: the other infos; the states, (num_envs, ...) or None; where they are set."""
        for i in np.flatnonzero(infos.get(f"_{SCENE_UPDATE_KEY}", ())).tolist():
            update: SceneUpdate = infos[SCENE_UPDATE_KEY][i]
            if update.number != self._num_changes[i] and not update.whole:
                raise RuntimeError(
                    f"Environment {i} changed its scene in a step whose infos did not arrive: a wrapper between it and "
                    f"VLMRewardVectorEnv steps it, or drops infos. {_REMEDY}"
                )
            self._num_changes[i] = update.number + update.count
            self._changes[i] = update.apply(self._changes[i])
        rest = {
            key: value for key, value in infos.items() if key.removeprefix("_") not in (STATE_KEY, SCENE_UPDATE_KEY)
        }
        return rest, infos.get(STATE_KEY), infos.get(f"_{STATE_KEY}", np.zeros(self._env.num_envs, dtype=np.bool_))

    def _call(self, name: str, *args: Any) -> Sequence[Any]:
        """Get an attribute of every environment; of a method, its result."""
        if not self._views:
            return self._base.call(name, *args)
        attributes = (getattr(view, name) for view in self._views)
        return [attribute(*args) if callable(attribute) else attribute for attribute in attributes]

    def _frames(self) -> list[NDArray[np.uint8]]:
        frames = self._env.render()
        count = 0 if frames is None else len(frames)
        if frames is None or count != self._env.num_envs:
            raise ValueError(f"`env` must render a frame for each of {self._env.num_envs}. Received {count} frames.")
        return [check_frame(frame) for frame in frames]


def _wrap(env: gym.Env[Any, Any], camera: Any, quality: Quality) -> CaptureState:
    """Wrap an environment. A `CaptureState` of the user's is kept, unless another camera or quality is passed."""
    if isinstance(env, AutoCaptureState):
        env = env.env
    if isinstance(env, CaptureState):
        if camera is None and quality == "fast":
            return env
        env = env.env
    return AutoCaptureState(env, camera=camera, quality=quality)


def as_vector_env(
    env: VectorEnv[Any, Any, Any] | Sequence[Callable[[], gym.Env[Any, Any]]], mode: AutoresetMode | None
) -> VectorEnv[Any, Any, Any]:
    """Return vector environments as they are, or a `SyncVectorEnv` of functions.

    A ValueError says that two environments are one object: their episodes would mix.
    """
    if isinstance(env, VectorEnv):
        _check_distinct(env)
        return env
    is_list = isinstance(env, Sequence) and not isinstance(env, str) and len(env) > 0 and all(map(callable, env))
    check_that(is_list, "env", "a vector environment, or a list of functions that make environments, at least one", env)
    with close_on_error([made := SyncVectorEnv(env, autoreset_mode=mode or AutoresetMode.NEXT_STEP)]):
        _check_distinct(made)
    return made


def _check_distinct(env: VectorEnv[Any, Any, Any]) -> None:
    """Raise a ValueError if two environments of a `SyncVectorEnv` are the same object, wrapped or not."""
    base = env.unwrapped
    envs = [one.unwrapped for one in base.envs] if isinstance(base, SyncVectorEnv) else []
    for i, one in enumerate(envs):
        if any(one is other for other in envs[:i]):
            raise ValueError(
                f"`env` must have a different object for each environment. Received {one} twice, also as number {i}. "
                "Each function must make a new environment."
            )
