"""MuJoCo scenes from their states: `qpos`, and what else a model needs to be drawn."""

import copy
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.checks import check_choice, check_positive_integer
from vlmrm_gym.rendering.cameras import Camera, get_fields, make_camera, set_fields
from vlmrm_gym.rendering.opengl import make_context
from vlmrm_gym.rendering.renderer import QUALITIES, Quality, check_states


class MuJoCoRenderer:
    """Draws states of a MuJoCo model. A frame is, to the pixel, that of `mj_forward` and a render.

    A state is `qpos`, then position and orientation of the mocap bodies and the activations of muscles, where the model
    has any: 24 numbers (192 bytes) for Gymnasium's humanoid.

    Args:
        model: The model; it is copied, so later changes of it (say, of colours) are not seen.
        height: Of the frames, in pixels.
        width: Of the frames, in pixels.
        camera: See `vlmrm_gym.rendering.cameras.make_camera`; also a ready `mujoco.MjvCamera`.
        quality: "faithful" draws as the model says, with shadows, reflections and antialiasing. "fast" leaves those out
            and draws rounded geoms with fewer facets, which is several times as fast where a CPU draws.
        visual_options: Flags of `mjvOption` and their values, as `MujocoEnv` takes them.
        max_geom: The most geoms that can be drawn.
        egl_device: The EGL device to draw on; see `vlmrm_gym.rendering.opengl.make_context`.

    Raises:
        ValueError: A size below 1, an unknown camera or quality.
    """

    dtype = np.dtype(np.float64)

    def __init__(
        self,
        model: mujoco.MjModel,
        height: int,
        width: int,
        *,
        camera: Camera | mujoco.MjvCamera | None = None,
        quality: Quality = "fast",
        visual_options: dict[int, bool] | None = None,
        max_geom: int = 10_000,
        egl_device: int | None = None,
    ) -> None:
        check_positive_integer("height", height)
        check_positive_integer("width", width)
        check_choice("quality", quality, QUALITIES)
        self.height, self.width = int(height), int(width)
        self.state_size = model.nq + 7 * model.nmocap + model.na
        ready = isinstance(camera, mujoco.MjvCamera)
        self._camera: mujoco.MjvCamera = copy.copy(camera) if ready else make_camera(model, camera)
        self._quality: Quality = quality
        self._visual_options = dict(visual_options or {})
        self._max_geom, self._egl_device = max_geom, egl_device
        self._model = copy.copy(model)
        self._model.vis.global_.offheight, self._model.vis.global_.offwidth = self.height, self.width
        if quality == "fast":
            detail = self._model.vis.quality
            detail.offsamples, detail.shadowsize = 0, 1
            detail.numslices, detail.numstacks = min(detail.numslices, 16), min(detail.numstacks, 10)
        self._canvas: _Canvas | None = None

    def capture(self, env: gym.Env[Any, Any]) -> NDArray[np.float64]:
        """The state of a `MujocoEnv`, float64 (state_size,)."""
        data: mujoco.MjData = env.unwrapped.data  # pyright: ignore[reportAttributeAccessIssue]
        return np.concatenate((data.qpos, data.mocap_pos.ravel(), data.mocap_quat.ravel(), data.act))

    def render(self, states: ArrayLike) -> NDArray[np.uint8]:
        """Draw states (B, state_size): uint8 (B, height, width, 3).

        Raises:
            ValueError: States of another width, or with a NaN or an infinity.
            DependencyNotInstalled: No OpenGL; says which package to install.
        """
        checked = check_states(states, self.state_size)
        if self._canvas is None:
            self._canvas = _Canvas(
                self._model, self._camera, self._quality, self._visual_options, self._max_geom, self._egl_device
            )
        return self._canvas.draw(checked)

    def close(self) -> None:
        """Free the OpenGL context; drawing again makes another."""
        if self._canvas is not None:
            self._canvas.close()
            self._canvas = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_canvas": None, "_camera": get_fields(self._camera)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._camera = mujoco.MjvCamera()
        set_fields(self._camera, state["_camera"])


class _Canvas:
    """An OpenGL context with a model's meshes and textures in it."""

    def __init__(
        self,
        model: mujoco.MjModel,
        camera: mujoco.MjvCamera,
        quality: Quality,
        visual_options: dict[int, bool],
        max_geom: int,
        egl_device: int | None,
    ) -> None:
        self._model, self._camera = model, camera
        self._data = mujoco.MjData(model)
        self._options = mujoco.MjvOption()
        for flag, value in visual_options.items():
            self._options.flags[flag] = value
        self._scene = mujoco.MjvScene(model, max_geom)
        if quality == "fast":
            self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
            self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        height, width = model.vis.global_.offheight, model.vis.global_.offwidth
        self._viewport = mujoco.MjrRect(0, 0, width, height)
        self._opengl = make_context(width, height, egl_device)
        with self._opengl.as_current():
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
            mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)

    def draw(self, states: NDArray[np.float64]) -> NDArray[np.uint8]:
        upside_down = np.empty((len(states), self._viewport.height, self._viewport.width, 3), dtype=np.uint8)
        with self._opengl.as_current():
            for state, frame in zip(states, upside_down, strict=True):
                self._pose(state)
                mujoco.mjv_updateScene(
                    self._model, self._data, self._options, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene
                )
                mujoco.mjr_render(self._viewport, self._scene, self._context)
                mujoco.mjr_readPixels(frame, None, self._viewport, self._context)
        return np.ascontiguousarray(upside_down[:, ::-1])

    def _pose(self, state: NDArray[np.float64]) -> None:
        """The part of `mj_forward` that moves what can be seen."""
        model, data = self._model, self._data
        ends = np.cumsum((model.nq, 3 * model.nmocap, 4 * model.nmocap))
        data.qpos[:], positions, orientations, data.act[:] = np.split(state, ends)
        data.mocap_pos[:], data.mocap_quat[:] = positions.reshape(-1, 3), orientations.reshape(-1, 4)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        mujoco.mj_flex(model, data)
        mujoco.mj_tendon(model, data)

    def close(self) -> None:
        with self._opengl.as_current():
            self._context.free()
        self._opengl.free()


def own_camera(env: Any) -> mujoco.MjvCamera:
    """The camera that a `MujocoEnv` renders with, as its `camera_id`, `camera_name` and `default_camera_config` say."""
    renderer = env.mujoco_renderer
    data = mujoco.MjData(env.model)
    data.qpos[:] = env.init_qpos
    mujoco.mj_kinematics(env.model, data)
    camera = mujoco.MjvCamera()
    camera.lookat[:] = np.median(data.geom_xpos, axis=0)
    camera.distance = env.model.stat.extent
    set_fields(camera, renderer.default_cam_config or {})
    camera.type = mujoco.mjtCamera.mjCAMERA_FREE if renderer.camera_id == -1 else mujoco.mjtCamera.mjCAMERA_FIXED
    camera.fixedcamid = renderer.camera_id
    return camera
