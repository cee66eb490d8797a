"""Renders MuJoCo scenes from their states: `qpos`, and what else affects a frame."""

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.states.cameras import Cameras, from_fields, get_fields, make_cameras
from vlmrm_gym.states.opengl import as_current, free_context, make_context
from vlmrm_gym.states.scene_changes import AppliedChanges, SceneChange, same_sizes
from vlmrm_gym.states.states import Quality, check_states


class MuJoCoRenderer:
    """Renders states of a MuJoCo model. A frame equals, pixel for pixel, that of `mj_forward` and a render.

    A state is `qpos`, then positions and orientations of the mocap bodies and activations of muscles, if the model has
    any: 24 numbers (192 bytes) for Gymnasium's humanoid. With several cameras a state has several views: each state is
    posed once, and drawn from every camera. The model is copied: later changes are passed as scene changes.

    For `camera` see `make_cameras`; `visual_options` are flags of `mjvOption` and their values, as in `MujocoEnv`. The
    quality "faithful" follows the model's settings, with shadows, reflections and antialiasing; "fast" leaves those out
    and renders rounded geoms with fewer facets, which is several times as fast on a CPU.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        height: int,
        width: int,
        *,
        camera: Cameras | None = None,
        quality: Quality = "fast",
        visual_options: Mapping[int, bool] | None = None,
        max_geom: int = 10_000,
    ) -> None:
        self.height, self.width = height, width
        self.look: dict[str, Any] = {
            "quality": quality,
            "visual_options": dict(visual_options or {}),
            "max_geom": max_geom,
        }
        """Keyword arguments that other sizes and cameras do not change."""
        self.cameras = [get_fields(one) for one in make_cameras(model, camera)]
        """The fields of each camera."""
        self.num_views = len(self.cameras)
        """Number of cameras."""
        self.state_size: int = model.nq + 7 * model.nmocap + model.na
        """Number of values in a state."""
        self.model = copy.copy(model)
        """The model without scene changes. Must not be written to."""
        self.model.vis.global_.offheight, self.model.vis.global_.offwidth = self.height, self.width
        if quality == "fast":
            detail = self.model.vis.quality
            detail.offsamples, detail.shadowsize = 0, 1
            detail.numslices, detail.numstacks = min(detail.numslices, 16), min(detail.numstacks, 10)
        self._canvas: _Canvas | None = None

    def capture(self, env: gym.Env[Any, Any]) -> NDArray[np.float64]:
        """Capture the state of a `MujocoEnv`, float64 (state_size,)."""
        data: mujoco.MjData = env.unwrapped.data  # pyright: ignore[reportAttributeAccessIssue]
        return np.concatenate((data.qpos, data.mocap_pos.ravel(), data.mocap_quat.ravel(), data.act))

    def render(self, states: ArrayLike, changes: Sequence[SceneChange | None] | None = None) -> NDArray[np.uint8]:
        """Render states: uint8 (B, height, width, 3); of several cameras (B, num_views, height, width, 3)."""
        checked = check_states(states, self.state_size)
        if self._canvas is None:
            self._canvas = _Canvas(self)
        return self._canvas.draw(checked, changes)

    def at_size(self, render_size: Callable[[int, int], tuple[int, int]]) -> "MuJoCoRenderer":
        """See `EnvRenderer`."""
        cameras = [from_fields(fields) for fields in self.cameras]
        return MuJoCoRenderer(self.model, *render_size(self.height, self.width), camera=cameras, **self.look)

    def from_cameras(self, camera: Cameras) -> "MuJoCoRenderer":
        """Make this renderer with other cameras; named sets turn its first one. A ValueError if one does not exist."""
        cameras = make_cameras(self.model, camera, from_fields(self.cameras[0]))
        return MuJoCoRenderer(self.model, self.height, self.width, camera=cameras, **self.look)

    def is_equivalent(self, other: object) -> bool:
        """Tell whether this renderer, given scene changes, renders the frames of another one of its size."""
        return (
            isinstance(other, MuJoCoRenderer)
            and self.look == other.look
            and self.num_views == other.num_views
            and same_sizes(self.model, other.model)
        )

    def close(self) -> None:
        """Free the OpenGL context. Rendering again makes another."""
        if self._canvas is not None:
            self._canvas.close()
            self._canvas = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_canvas": None}


class _Canvas:
    """An OpenGL context with the meshes and textures of a renderer's model uploaded."""

    def __init__(self, renderer: MuJoCoRenderer) -> None:
        self._model, self._cameras = copy.copy(renderer.model), [from_fields(fields) for fields in renderer.cameras]
        self._changes = AppliedChanges(self._model, self._cameras)
        self._data = mujoco.MjData(self._model)
        self._options = make_options(renderer.look["visual_options"])
        self._scene = mujoco.MjvScene(self._model, renderer.look["max_geom"])
        if renderer.look["quality"] == "fast":
            self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
            self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._viewport = mujoco.MjrRect(0, 0, renderer.width, renderer.height)
        self._opengl = make_context(renderer.width, renderer.height)
        with as_current(self._opengl):
            self._context = self._make_context()
        # Not left to the destructor of `MjrContext`, which frees in whichever OpenGL context is current.
        self._uploaded = [self._context]
        self.close = weakref.finalize(self, _free, self._opengl, self._uploaded)
        self.close.atexit = False

    def draw(self, states: NDArray[np.float64], changes: Sequence[SceneChange | None] | None) -> NDArray[np.uint8]:
        height, width = self._viewport.height, self._viewport.width
        upside_down = np.empty((len(states), len(self._cameras), height, width, 3), dtype=np.uint8)
        with as_current(self._opengl):
            for state, change, frames in zip(states, changes or repeat(None), upside_down, strict=False):
                if self._changes.apply(change):
                    self._context.free()
                    self._context = self._uploaded[0] = self._make_context()
                self._pose(state)
                for camera, frame in zip(self._cameras, frames, strict=True):
                    self._draw(camera, frame)
        frames = np.ascontiguousarray(upside_down[:, :, ::-1])
        return frames[:, 0] if len(self._cameras) == 1 else frames

    def _draw(self, camera: mujoco.MjvCamera, upside_down: NDArray[np.uint8]) -> None:
        """Draw the current pose into uint8 (H, W, 3), whose first row is the lowest."""
        if camera.type == mujoco.mjtCamera.mjCAMERA_TRACKING:
            # Before MuJoCo 3.3.7 the scene's update moves it there over many frames.
            camera.lookat[:] = self._data.subtree_com[camera.trackbodyid]
        mujoco.mjv_updateScene(
            self._model, self._data, self._options, None, camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        mujoco.mjr_render(self._viewport, self._scene, self._context)
        mujoco.mjr_readPixels(upside_down, None, self._viewport, self._context)

    def _pose(self, state: NDArray[np.float64]) -> None:
        model, data = self._model, self._data
        ends = np.cumsum((model.nq, 3 * model.nmocap, 4 * model.nmocap))
        data.qpos[:], positions, orientations, data.act[:] = np.split(state, ends)
        data.mocap_pos[:], data.mocap_quat[:] = positions.reshape(-1, 3), orientations.reshape(-1, 4)
        pose(model, data)

    def _make_context(self) -> mujoco.MjrContext:
        """Upload textures, meshes and settings. The OpenGL context must be current."""
        context = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, context)
        return context


def pose(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    """Run the part of `mj_forward` that affects rendering."""
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    mujoco.mj_camlight(model, data)
    mujoco.mj_flex(model, data)
    mujoco.mj_tendon(model, data)


def make_options(visual_options: Mapping[int, bool]) -> mujoco.MjvOption:
    """Make MuJoCo's default options, with some flags set."""
    options = mujoco.MjvOption()
    for flag, value in visual_options.items():
        options.flags[flag] = value
    return options


def _free(opengl: Any, uploaded: list[mujoco.MjrContext]) -> None:
    with as_current(opengl):
        uploaded.pop().free()
    free_context(opengl)
