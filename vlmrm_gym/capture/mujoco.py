"""Captures the states of MuJoCo environments, and finds and pins their cameras."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.capture.capture import Capture
from vlmrm_gym.capture.model_watch import ModelWatch
from vlmrm_gym.capture.viewer_watch import ViewerWatch
from vlmrm_gym.rendering.env_viewers import find_viewer, initial_camera, own_camera
from vlmrm_gym.rendering.model_fields import same_value
from vlmrm_gym.rendering.mujoco import MuJoCoRenderer, make_options
from vlmrm_gym.rendering.scene_changes import SceneChange, camera_field


class MuJoCoCapture(Capture):
    """Reads the states of one `MujocoEnv`, with every change that the environment makes to its model and its camera.

    Where the environment shows what no state contains, such as markers, its own frames are captured (see
    `ViewerWatch`), and where its model cannot be drawn as changes of the renderer's, such as one with other bodies.

    Args:
        env: A `MujocoEnv`.
        renderer: Draws the states.
        view: A renderer with the cameras to use, if those are not `renderer`'s; as many.
        own_camera: Whether the camera is the environment's own. It is followed if the environment changes it.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        renderer: MuJoCoRenderer,
        view: MuJoCoRenderer | None = None,
        *,
        own_camera: bool = False,
    ) -> None:
        self._env: Any = env.unwrapped
        self._renderer, self._own_camera = renderer, own_camera
        self._cameras: list[Mapping[str, Any]] = [*(view or renderer).cameras]
        self._viewer = ViewerWatch(self._env, renderer, self._cameras[0])
        self._camera_change = self._compare_cameras()
        self._last_changes: tuple[SceneChange, SceneChange] | None = None
        self._last_with_camera: SceneChange | None = None
        self._model: mujoco.MjModel | None = None
        self._watch: ModelWatch | None = None
        """Of the model; None if it cannot be drawn."""
        self._after_reset = True

    def reset(self) -> None:
        """See `Capture`."""
        self._after_reset = True

    def __call__(self) -> tuple[NDArray[np.float64], SceneChange | None]:
        """The state, float64 (state_size,), and how the scene differs from the renderer's."""
        if self._env.model is not self._model:
            self._model = self._env.model
            fits = self._renderer.can_draw(self._model)
            self._watch = ModelWatch(self._model, self._renderer.model) if fits else None
        if self._watch is None or not self._viewer.shows_state():
            cameras = None if self._own_camera else self._cameras
            frame = self._viewer.render(self._renderer.height, self._renderer.width, cameras)
            return np.zeros(self._renderer.state_size), SceneChange(frame=frame)
        change, self._after_reset = self._watch.change(after_reset=self._after_reset), False
        if self._own_camera and (camera := self._viewer.camera()) is not self._cameras[0]:
            self._cameras = [camera]
            self._camera_change = self._compare_cameras()
        return self._renderer.capture(self._env), self._with_camera(change)

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
        return {**self.__dict__, "_model": None, "_watch": None, "_after_reset": True}


def find_camera(env: Any) -> mujoco.MjvCamera:
    """The camera of a `MujocoEnv`, given by its `camera_id`, `camera_name` and `default_camera_config`.

    If these leave open what the camera looks at, Gymnasium chooses it at the first call of `render`: the median
    position of the geoms in the current state. If `render` has been called, that camera is returned. Otherwise the
    camera looks at the median position in the initial pose, so that the frame of a state does not depend on earlier
    states; `pin_camera` makes the environment render with it, too.
    """
    return own_camera(env.mujoco_renderer, env.init_qpos)


def pin_camera(env: Any) -> None:
    """Make a `MujocoEnv` render with the camera that `find_camera` returns, so that it shows what is scored."""
    if find_viewer(env.mujoco_renderer) is None:
        env.mujoco_renderer.default_cam_config = initial_camera(env.mujoco_renderer, env.init_qpos)


def shows_dynamics(env: Any) -> bool:
    """Whether a `MujocoEnv` renders quantities that its state does not determine: forces, contacts, range finders."""
    shown = make_options(env.mujoco_renderer._vopt).flags
    # Before MuJoCo 3.3.6 islands are shown by default, but found only where they are enabled.
    if (enabled := getattr(mujoco.mjtEnableBit, "mjENBL_ISLAND", None)) and not env.model.opt.enableflags & enabled:
        shown[mujoco.mjtVisFlag.mjVIS_ISLAND] = False
    has_rangefinders = mujoco.mjtSensor.mjSENS_RANGEFINDER in env.model.sensor_type
    return any(shown[flag] for flag in _DYNAMIC_FLAGS) or bool(
        has_rangefinders and shown[mujoco.mjtVisFlag.mjVIS_RANGEFINDER]
    )


_DYNAMIC_FLAGS = [
    getattr(mujoco.mjtVisFlag, f"mjVIS_{name}")
    for name in (
        *("ACTUATOR", "ACTIVATION", "CONSTRAINT", "PERTFORCE", "CONTACTPOINT", "CONTACTFORCE", "CONTACTSPLIT"),
        *("ISLAND", "BODYBVH", "MESHBVH", "SDFITER"),
    )
]
"""Visualisation flags whose drawings need more than positions."""
