"""Captures the states of MuJoCo environments; tries whether what these show is drawn from their states."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer
from numpy.typing import NDArray

from vlmrm_gym.states import env_viewers
from vlmrm_gym.states.cameras import from_fields
from vlmrm_gym.states.mujoco import MuJoCoRenderer, pose
from vlmrm_gym.states.scene_changes import CAMERA_FIELD, SceneChange, same_sizes
from vlmrm_gym.states.watch import ModelWatch, PhysicsWatch, ViewerWatch, Watch, data_memory, restored, small_memory

Cameras = Sequence[Mapping[str, Any]]
"""Fields of one or several cameras."""


class MuJoCoCapture:
    """Reads the states of an environment with a scene (see `find_scene`), and all that changes in its model and camera.

    Where the environment shows what no state contains, such as markers, its own frames are captured (see `Watch`), and
    where its model cannot be drawn as changes of the renderer's, such as one with other bodies. `cameras` are fields of
    as many cameras as the renderer has, None: the environment's own, wherever that moves. Without a `trial` states are
    drawn, by code that is known to draw the same.
    """

    def __init__(
        self, env: gym.Env[Any, Any], renderer: MuJoCoRenderer, cameras: Cameras | None, trial: "Trial | None"
    ) -> None:
        self._scene: Any = env_viewers.find_scene(env)
        self._renderer, self._cameras, self._trial = renderer, cameras, trial
        watched_env = env.unwrapped if trial is None else env
        is_physics = isinstance(self._scene, env_viewers.PhysicsScene)
        self._viewer = (PhysicsWatch if is_physics else ViewerWatch)(watched_env, self._scene, renderer.look)
        self._last: tuple[SceneChange | None, Cameras] | None = None
        """The model's change and the cameras, of which `_change` was made."""
        self._change: SceneChange | None = None
        self._model: mujoco.MjModel | None = None
        self._watch: ModelWatch | None = None
        """Of the model; None if it cannot be drawn."""
        self._memory: list[NDArray[np.uint8]] = []
        """What rendering may write to in the model."""
        self._after_reset = True

    def reset(self) -> None:
        """Call this after every reset of the environment: changes that only resets make are looked for then."""
        self._after_reset = True

    def __call__(self) -> tuple[NDArray[np.float64], SceneChange | None]:
        """The state, float64 (state_size,), and how the scene differs from the renderer's."""
        if self._scene.model is not self._model:
            self._model = self._scene.model
            fits = same_sizes(self._model, self._renderer.model)
            self._watch = ModelWatch(self._model, self._renderer.model) if fits else None
            self._memory = small_memory(self._model)
        if self._trial is None:
            return self._capture()
        data = self._scene.data  # kept, whatever rendering replaces
        with restored([*self._memory, data_memory(data)]):
            pose(self._model, data)  # a step leaves positions of one substep before
            return self._capture()

    def _capture(self) -> tuple[NDArray[np.float64], SceneChange | None]:
        is_drawn = self._watch is not None and self._viewer.shows_state()
        if is_drawn and self._trial is not None:
            is_drawn = self._trial(self._scene, self._viewer, self._renderer, self._cameras is None)
        if self._watch is None or not is_drawn:
            frame = self._viewer.render(self._renderer.height, self._renderer.width, self._cameras)
            return np.zeros(self._renderer.state_size), SceneChange(frame=frame)
        change, self._after_reset = self._watch.change(after_reset=self._after_reset), False
        change = self._with_cameras(change, self._cameras or [self._viewer.camera()])
        return self._renderer.capture(self._scene), change

    def _with_cameras(self, change: SceneChange | None, cameras: Cameras) -> SceneChange | None:
        """Put the model's change and those of the cameras together. The same ones give the same object."""
        if self._last != (change, cameras):
            self._last = change, cameras
            moved = {
                f"{CAMERA_FIELD}{number}.{name}": value
                for number, (camera, fields) in enumerate(zip(cameras, self._renderer.cameras, strict=True))
                for name, value in camera.items()
                if value != fields[name]
            }
            self._change = SceneChange({**moved, **(change.fields if change else {})}) if moved else change
        return self._change

    def __getstate__(self) -> dict[str, Any]:
        # What is watched is memory of this environment's model, which a copy does not share.
        return {**self.__dict__, "_model": None, "_watch": None, "_memory": [], "_after_reset": True}


class Trial:
    """Draws states both ways: as the environment renders them, and as a renderer does, with shadows and reflections.

    Two states are tried at first, and the first one after the second reset, the fourth, the eighth and so on. As long
    as the pixels are equal, states are captured; from a difference on, or with `failed`, the environment's frames.
    """

    def __init__(self, env: gym.Env[Any, Any], *, failed: bool) -> None:
        self._env, self.failed = env, failed
        self._num_due, self._num_resets, self._last_passed = 2, 0, 0

    def reset(self) -> None:
        """Call this after every reset of the environment."""
        self._num_resets += 1
        if self._num_resets & (self._num_resets - 1) == 0:
            self._num_due = max(self._num_due, 1)

    def __call__(self, scene: Any, watch: Watch, renderer: MuJoCoRenderer, own_camera: bool) -> bool:
        """Tell whether the state is drawn as the environment renders it. Model and data must be restored afterwards."""
        if self.failed:
            return False
        watch.prepare()
        if self._num_due == 0:
            return True
        self._num_due -= 1
        model, state, camera = copy.copy(scene.model), renderer.capture(scene), watch.camera()
        drawer = env_viewers.find_drawer(scene)
        is_first = env_viewers.find_viewer(drawer) is None
        env_frame = env_viewers.render_own(self._env)
        if is_first and not own_camera:  # it is not pinned, and a new viewer of Gymnasium's has chosen it
            camera = watch.camera()
        look = {**renderer.look, "quality": "faithful"}
        with closing(MuJoCoRenderer(model, *env_viewers.own_size(scene), camera=from_fields(camera), **look)) as exact:
            frame = exact.render(state[None])[0]
        if is_first and isinstance(env_viewers.find_viewer(drawer), OffScreenViewer):
            env_viewers.discard_viewer(drawer)
        self.failed = not np.array_equal(frame, env_frame)
        if self.failed and self._last_passed:
            warnings.warn(
                f"{self._env.unwrapped} shows more than its MuJoCo state in episode {self._num_resets}: its frames are "
                f"stored from now on. Rewards since episode {self._last_passed} may be of frames without it.",
                stacklevel=2,
            )
        elif self._num_due == 0:
            self._last_passed = self._num_resets
        return not self.failed
