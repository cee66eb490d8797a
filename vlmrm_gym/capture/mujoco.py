"""Captures the states of MuJoCo environments."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.capture.capture import Capture
from vlmrm_gym.capture.model_watch import ModelWatch, data_memory, restored, small_memory
from vlmrm_gym.capture.trial import Trial
from vlmrm_gym.capture.viewer_watch import PhysicsWatch, ViewerWatch
from vlmrm_gym.rendering.env_viewers import PhysicsScene, find_scene
from vlmrm_gym.rendering.mujoco import MuJoCoRenderer, pose
from vlmrm_gym.rendering.scene_changes import SceneChange, camera_field, same_value


class MuJoCoCapture(Capture):
    """Reads the states of one environment, with every change that it makes to its MuJoCo model and its camera.

    Where the environment shows what no state contains, such as markers, its own frames are captured (see `Watch`), and
    where its model cannot be drawn as changes of the renderer's, such as one with other bodies.

    Args:
        env: An environment with a scene; see `find_scene`.
        renderer: Draws the states.
        view: A renderer with the cameras to use, if those are not `renderer`'s; as many.
        own_camera: Whether the camera is the environment's own. It is followed if the environment changes it.
        trial: Decides whether its states are drawn; None: they are, by code that is known to draw the same.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        renderer: MuJoCoRenderer,
        view: MuJoCoRenderer | None = None,
        *,
        own_camera: bool = False,
        trial: Trial | None = None,
    ) -> None:
        self._scene: Any = find_scene(env)
        self._renderer, self._own_camera, self._trial = renderer, own_camera, trial
        self._cameras: list[Mapping[str, Any]] = [*(view or renderer).cameras]
        shown = env.unwrapped if trial is None else env
        self._viewer = (
            PhysicsWatch(shown, self._scene)
            if isinstance(self._scene, PhysicsScene)
            else ViewerWatch(shown, self._scene, renderer)
        )
        self._camera_change = self._compare_cameras()
        self._last_changes: tuple[SceneChange, SceneChange] | None = None
        self._last_with_camera: SceneChange | None = None
        self._model: mujoco.MjModel | None = None
        self._watch: ModelWatch | None = None
        """Of the model; None if it cannot be drawn."""
        self._memory: list[NDArray[np.uint8]] = []
        """What rendering may write to in the model."""
        self._after_reset = True

    def reset(self) -> None:
        """See `Capture`."""
        self._after_reset = True

    def __call__(self) -> tuple[NDArray[np.float64], SceneChange | None]:
        """The state, float64 (state_size,), and how the scene differs from the renderer's."""
        if self._scene.model is not self._model:
            self._model = self._scene.model
            fits = self._renderer.can_draw(self._model)
            self._watch = ModelWatch(self._model, self._renderer.model) if fits else None
            self._memory = small_memory(self._model)
        if self._trial is None:
            return self._capture()
        data = self._scene.data  # kept, whatever rendering replaces
        with restored([*self._memory, data_memory(data)]):
            pose(self._model, data)  # a step leaves positions of one substep before
            return self._capture()

    def _capture(self) -> tuple[NDArray[np.float64], SceneChange | None]:
        if self._watch is None or not self._viewer.shows_state() or not self._trial_passes():
            cameras = None if self._own_camera else self._cameras
            frame = self._viewer.render(self._renderer.height, self._renderer.width, cameras)
            return np.zeros(self._renderer.state_size), SceneChange(frame=frame)
        change, self._after_reset = self._watch.change(after_reset=self._after_reset), False
        if self._own_camera and (camera := self._viewer.camera()) is not self._cameras[0]:
            self._cameras = [camera]
            self._camera_change = self._compare_cameras()
        return self._renderer.capture(self._scene), self._with_camera(change)

    def _trial_passes(self) -> bool:
        if self._trial is None:
            return True
        if self._trial.failed:
            return False
        self._viewer.prepare()
        return self._trial(self._scene, self._viewer, self._renderer, own_camera=self._own_camera)

    def _compare_cameras(self) -> SceneChange | None:
        """How the cameras differ from those of the renderer."""
        moved = {
            camera_field(number, name): value
            for number, (own, drawn) in enumerate(zip(self._cameras, self._renderer.cameras, strict=True))
            for name, value in own.items()
            if not same_value(value, drawn[name])
        }
        return SceneChange(moved) if moved else None

    def _with_camera(self, change: SceneChange | None) -> SceneChange | None:
        """The model's change together with the camera's. The same change gives the same object."""
        if self._camera_change is None or change is None:
            return change or self._camera_change
        if self._last_changes != (self._camera_change, change):
            self._last_changes = self._camera_change, change
            self._last_with_camera = SceneChange({**self._camera_change.fields, **change.fields})
        return self._last_with_camera

    def __getstate__(self) -> dict[str, Any]:
        # What is watched is memory of this environment's model, which a copy does not share.
        return {**self.__dict__, "_model": None, "_watch": None, "_memory": [], "_after_reset": True}
