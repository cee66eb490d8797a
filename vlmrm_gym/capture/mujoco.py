"""Captures the states of MuJoCo environments, and finds and pins their cameras."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.capture.model_watch import ModelWatch
from vlmrm_gym.capture.viewer_watch import ViewerWatch, camera_type
from vlmrm_gym.rendering.cameras import get_fields, set_fields
from vlmrm_gym.rendering.model_changes import camera_field
from vlmrm_gym.rendering.model_fields import same_value
from vlmrm_gym.rendering.mujoco import MuJoCoRenderer
from vlmrm_gym.rendering.scene_changes import SceneChange
from vlmrm_gym.rendering.viewers import find_viewer


class MuJoCoCapture:
    """Reads the states of one `MujocoEnv`, with every change that the environment makes to its model and its camera.

    Some models cannot be drawn as changes of the renderer's, such as one with other bodies. Their frames are drawn at
    once, and captured instead of states. Where the environment shows what no state contains, such as markers, its own
    frames are captured: see `ViewerWatch`.

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
        self._renderer = renderer
        self._view = view or renderer
        self._cameras: list[Mapping[str, Any]] = [*self._view.cameras]
        self._viewer, self._own_camera = ViewerWatch(self._env, renderer, self._cameras[0]), own_camera
        self._substitute: MuJoCoRenderer | None = None
        self._camera_change = self._compare_cameras()
        self._last_changes: tuple[SceneChange, SceneChange] | None = None
        self._last_with_camera: SceneChange | None = None
        self._watch: ModelWatch | None = None
        self._after_reset = True

    def reset(self) -> None:
        """Call this after every reset of the environment."""
        self._after_reset = True

    def __call__(self) -> tuple[NDArray[np.float64], SceneChange | None]:
        """The state, float64 (state_size,), and how the scene differs from the renderer's."""
        if not self._viewer.shows_state():
            frame = self._viewer.render(
                self._renderer.height, self._renderer.width, None if self._own_camera else self._cameras
            )
            return np.zeros(self._renderer.state_size), SceneChange(frame=frame)
        if self._watch is None or self._env.model is not self._watch.model:
            self._watch_model(self._env.model)
        assert self._watch is not None
        change, self._after_reset = self._watch.change(after_reset=self._after_reset), False
        if self._own_camera:
            self._follow_camera()
        if self._substitute is None:
            return self._renderer.capture(self._env), self._with_camera(change)
        frame = self._substitute.render(self._substitute.capture(self._env)[None], [self._with_camera(change)])[0]
        return np.zeros(self._renderer.state_size), SceneChange(frame=frame)

    def _follow_camera(self) -> None:
        """Take over the environment's camera if it has changed."""
        camera = self._viewer.camera()
        if camera is not self._cameras[0]:
            self._cameras = [camera]
            self._camera_change = self._compare_cameras()

    def _compare_cameras(self) -> SceneChange | None:
        """How the cameras differ from those of the renderer that draws."""
        drawn = (self._substitute or self._renderer).cameras
        moved = {
            camera_field(number, name): value
            for number, (own, others) in enumerate(zip(self._cameras, drawn, strict=True))
            for name, value in own.items()
            if not same_value(value, others[name])
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

    def close(self) -> None:
        """Free the graphics resources."""
        if self._substitute is not None:
            self._substitute.close()

    def __getstate__(self) -> dict[str, Any]:
        # What is watched is memory of this environment's model, which a copy does not share.
        return {**self.__dict__, "_watch": None, "_after_reset": True}

    def _watch_model(self, model: mujoco.MjModel) -> None:
        """Watch another model from now on."""
        self.close()
        fits = self._renderer.can_draw(model)
        self._substitute = None if fits else self._view.with_model(model)
        self._watch = ModelWatch(model, (self._substitute or self._renderer).model)
        self._camera_change = self._compare_cameras()


def find_camera(env: Any) -> mujoco.MjvCamera:
    """The camera of a `MujocoEnv`, given by its `camera_id`, `camera_name` and `default_camera_config`.

    If these leave open what the camera looks at, Gymnasium chooses it at the first call of `render`: the median
    position of the geoms in the current state. If `render` has been called, that camera is returned. Otherwise the
    camera looks at the median position in the initial pose, so that the frame of a state does not depend on earlier
    states; `pin_camera` makes the environment render with it, too.
    """
    renderer = env.mujoco_renderer
    camera = mujoco.MjvCamera()
    viewer = find_viewer(renderer)
    set_fields(camera, _complete_config(env) if viewer is None else get_fields(viewer.cam))
    camera.type, camera.fixedcamid = camera_type(renderer), renderer.camera_id
    return camera


def pin_camera(env: Any) -> None:
    """Make a `MujocoEnv` render with the camera that `find_camera` returns, so that it shows what is scored."""
    if find_viewer(env.mujoco_renderer) is None:
        env.mujoco_renderer.default_cam_config = _complete_config(env)


def _complete_config(env: Any) -> dict[str, Any]:
    """The camera configuration of a `MujocoEnv`; what it leaves open is taken from the initial pose."""
    data = mujoco.MjData(env.model)
    data.qpos[:] = env.init_qpos
    mujoco.mj_kinematics(env.model, data)
    defaults = {"lookat": np.median(data.geom_xpos, axis=0), "distance": env.model.stat.extent}
    return {**defaults, **(env.mujoco_renderer.default_cam_config or {})}


def shows_dynamics(env: Any) -> bool:
    """Whether a `MujocoEnv` renders quantities that its state does not determine: forces, contacts, range finders."""
    shown = mujoco.MjvOption().flags.astype(bool)
    for flag, value in env.mujoco_renderer._vopt.items():
        shown[flag] = value
    has_rangefinder = (env.model.sensor_type == mujoco.mjtSensor.mjSENS_RANGEFINDER).any()
    return any(shown[flag] for flag in _DYNAMIC_FLAGS) or bool(
        shown[mujoco.mjtVisFlag.mjVIS_RANGEFINDER] and has_rangefinder
    )


_DYNAMIC_FLAGS = tuple(
    getattr(mujoco.mjtVisFlag, f"mjVIS_{name}")
    for name in (
        *("ACTUATOR", "ACTIVATION", "CONSTRAINT", "PERTFORCE", "CONTACTPOINT", "CONTACTFORCE", "CONTACTSPLIT"),
        *("ISLAND", "BODYBVH", "MESHBVH", "SDFITER"),
    )
)
"""Visualisation flags whose drawings need more than positions."""
