"""Detects changes of a MuJoCo environment: in its model, and in how it is drawn (camera, options, what it adds)."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_env import MujocoEnv
from gymnasium.envs.mujoco.mujoco_rendering import BaseRender, MujocoRenderer, OffScreenViewer
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

from vlmrm_gym.states import env_viewers
from vlmrm_gym.states.drawing import check_frame, resize
from vlmrm_gym.states.mujoco import make_options
from vlmrm_gym.states.scene_changes import DRAWN, LARGE, SceneChange, field_names, frozen_copy, get_field, same_value

_MAX_GAP = 4096
"""Fields with at most this many bytes between them are compared as one block of memory."""
_SAMPLE = 256
"""Number of elements of a large field that are compared at every step."""
_METHODS = frozenset({**vars(MujocoRenderer), **vars(BaseRender), **vars(OffScreenViewer)})
_read_settings = attrgetter(
    *(f"vopt.{name}" for name in ("label", "frame", "bvh_depth", "flex_layer", "flags")),
    *(f"vopt.{kind}group" for kind in ("geom", "site", "joint", "tendon", "actuator", "flex", "skin")),
    # What else counts, only counts with one of these: a perturbation needs something that is selected or active.
    *(f"pert.{name}" for name in ("select", "flexselect", "skinselect", "active", "active2")),
    *(f"scn.{name}" for name in ("maxgeom", "enabletransform", "stereo", "framewidth", "flags")),
    *(f"viewport.{name}" for name in ("left", "bottom", "width", "height")),
)
_DYNAMIC = [
    getattr(mujoco.mjtVisFlag, f"mjVIS_{name}")
    for name in (
        *("ACTUATOR", "ACTIVATION", "CONSTRAINT", "PERTFORCE", "CONTACTPOINT", "CONTACTFORCE", "CONTACTSPLIT"),
        *("BODYBVH", "MESHBVH", "SDFITER"),
    )
]
"""Visualisation flags whose drawings need more than positions."""


class ModelWatch:
    """Finds the fields in which an environment's model differs from the renderer's.

    Both have the same sizes. Small fields are compared at every call, as blocks of memory (microseconds). Textures,
    meshes and height fields are compared completely after resets, and otherwise by a sample of their elements.
    """

    def __init__(self, model: mujoco.MjModel, drawn: mujoco.MjModel) -> None:
        self.model, self._drawn = model, drawn
        self._names = field_names(model)
        self._large = _large_arrays(model)
        self._memory = small_memory(model)
        # At random, because a regular step would see a single column of many textures.
        rng = np.random.default_rng(0)
        self._samples = [(array, rng.integers(len(array), size=_SAMPLE)) for array in self._large.values()]
        self._last_memory: list[bytes] | None = None
        self._last_samples: list[bytes] | None = None
        self._digests: list[bytes] = []
        self._change: SceneChange | None = None

    def change(self, *, after_reset: bool) -> SceneChange | None:
        """Compute the difference now; None without one. Returns the same object until something changes."""
        memory = [part.tobytes() for part in self._memory]
        samples = [array.take(indices).tobytes() for array, indices in self._samples]
        large = samples != self._last_samples
        if after_reset:
            digests = [xxh3_128_digest(one.view(np.uint8).data) for one in self._large.values()]
            large, self._digests = large or digests != self._digests, digests
        if large or memory != self._last_memory:
            self._last_memory, self._last_samples, self._change = memory, samples, self._compare(large=large)
        return self._change

    def _compare(self, *, large: bool) -> SceneChange | None:
        """Compare field by field; the large fields only if `large`."""
        before = {} if self._change is None else self._change.fields
        fields = {} if large else {name: before[name] for name in self._large if name in before}
        for name in self._names if large else (name for name in self._names if name not in self._large):
            value = get_field(self.model, name)
            if not same_value(value, get_field(self._drawn, name)):
                known = name in before and same_value(value, before[name])
                fields[name] = before[name] if known else frozen_copy(value)
        return SceneChange(fields) if fields else None


def _large_arrays(model: mujoco.MjModel) -> dict[str, NDArray[Any]]:
    names = (name for name in field_names(model) if name.startswith(LARGE))
    return {name: array for name in names if (array := getattr(model, name).reshape(-1)).nbytes > _MAX_GAP}


def small_memory(model: mujoco.MjModel) -> list[NDArray[np.uint8]]:
    """View the memory of all other fields that can affect a frame, as few blocks, which do not keep the model alive.

    MuJoCo allocates the arrays of a model side by side, and keeps visual settings and statistics in the struct itself.
    """
    large = {_address(array) for array in _large_arrays(model).values()}
    arrays = [getattr(model, name) for name in dir(model) if name.startswith(DRAWN)]
    arrays = [array for array in arrays if isinstance(array, np.ndarray) and array.nbytes]
    blocks: list[tuple[int, int]] = []
    for start, nbytes in sorted((_address(array), array.nbytes) for array in arrays):
        if start in large:
            continue
        if blocks and 0 <= start - blocks[-1][1] <= _MAX_GAP:
            blocks[-1] = (blocks[-1][0], start + nbytes)
        else:
            blocks.append((start, start + nbytes))
    struct = model._address
    blocks.append((struct, _address(model.stat.center) + model.stat.center.nbytes))
    return [_memory(start, end - start) for start, end in blocks]


def data_memory(data: mujoco.MjData) -> NDArray[np.uint8]:
    """View the memory of what the next step and observations read, which does not keep the data alive."""
    # MuJoCo allocates the arrays of fixed size as one block; these are its first and its last.
    start = _address(data.qpos)
    return _memory(start, _address(data.cfrc_ext) + data.cfrc_ext.nbytes - start)


@contextmanager
def restored(blocks: Sequence[NDArray[np.uint8]]) -> Iterator[None]:
    """Put memory back as it was, whatever is written to it in between."""
    before = [block.copy() for block in blocks]
    try:
        yield
    finally:
        for block, content in zip(blocks, before, strict=True):
            block[:] = content


def _memory(address: int, nbytes: int) -> NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def _address(array: NDArray[Any]) -> int:
    return array.__array_interface__["data"][0]


class Watch:
    """Follows the camera that an environment renders with, and detects frames that show more than its state.

    `look` is the renderer's, which the environment's may differ from by now.
    """

    def __init__(self, env: gym.Env[Any, Any], scene: Any, look: Mapping[str, Any]) -> None:
        self._env, self._scene, self._look = env, scene, look
        self._code = _render_methods(env, scene)
        self._size = env_viewers.own_size(scene)
        self._initial = env_viewers.initial_view(scene)
        flags = make_options(look["visual_options"]).flags
        self._shows_islands = bool(flags[mujoco.mjtVisFlag.mjVIS_ISLAND])
        has_rangefinders = mujoco.mjtSensor.mjSENS_RANGEFINDER in scene.model.sensor_type
        self._shows_dynamics = any(flags[flag] for flag in _DYNAMIC) or bool(
            has_rangefinders and flags[mujoco.mjtVisFlag.mjVIS_RANGEFINDER]
        )

    def camera(self) -> Mapping[str, Any]:
        """Get the fields of the camera now."""
        return env_viewers.read_camera(self._scene, self._initial)

    def shows_state(self) -> bool:
        """Tell whether state, model and camera determine the environment's frame, drawn by its present code."""
        return not (
            self._shows_dynamics
            or (self._shows_islands and self._scene.data.nisland)
            or _render_methods(self._env, self._scene) != self._code
            or env_viewers.own_size(self._scene) != self._size
        )

    def prepare(self) -> None:
        """Run what the environment does before it draws a frame, which may change its model."""
        frame = np.zeros((*self._size, 3), dtype=np.uint8)
        with env_viewers.attribute_set(env_viewers.find_drawer(self._scene), "render", lambda *_, **__: frame):
            self._env.render()

    def render(self, height: int, width: int, cameras: Sequence[Mapping[str, Any]] | None) -> NDArray[np.uint8]:
        """Render the environment's frame, uint8 (height, width, 3), or those of V > 1 `cameras`, (V, ...)."""
        rendered = (
            [env_viewers.render_own(self._env)] if cameras is None else env_viewers.render_views(self._env, cameras)
        )
        frames = np.stack([resize(check_frame(frame), (height, width)) for frame in rendered])
        return frames if len(frames) > 1 else frames[0]


class PhysicsWatch(Watch):
    """Watches an environment of dm_control's, whose `render_kwargs` may ask for more than the model."""

    def shows_state(self) -> bool:
        """See `Watch`."""
        return super().shows_state() and self._scene.env.render_kwargs.keys() <= {"height", "width", "camera_id"}


class ViewerWatch(Watch):
    """Watches an environment that renders with a `MujocoRenderer`.

    Our renderer draws as a new viewer of Gymnasium's does, with the environment's `visual_options`. The environment has
    to render a frame itself if its viewer has other options or another MjData, a perturbation, markers or overlays, or
    if other code renders than did at first.
    """

    def __init__(self, env: gym.Env[Any, Any], scene: Any, look: Mapping[str, Any]) -> None:
        super().__init__(env, scene, look)
        self._shown: list[Any] = []
        """The markers in the last frame that was captured, if they have been put back."""
        self._shown_at = -1.0
        height, width = self._size
        new_viewer = SimpleNamespace(
            vopt=make_options(look["visual_options"]),
            pert=mujoco.MjvPerturb(),
            scn=mujoco.MjvScene(scene.model, look["max_geom"]),
            viewport=mujoco.MjrRect(0, 0, width, height),
        )
        self._settings = _settings(new_viewer)

    def shows_state(self) -> bool:
        """See `Watch`."""
        scene, renderer = self._scene, self._scene.mujoco_renderer
        if not super().shows_state() or not _viewer_is_gymnasiums(renderer):
            return False
        viewer = env_viewers.find_viewer(renderer)
        source = renderer if viewer is None else viewer
        if source.model is not scene.model or source.data is not scene.data:
            return False
        if viewer is None:
            return {**self._look, **env_viewers.find_look(scene)} == self._look
        if self._shown and scene.data.time != self._shown_at:  # a marker is for one frame
            kept = [marker for marker in viewer._markers if all(marker is not shown for shown in self._shown)]
            viewer._markers[:], self._shown = kept, []
        return not viewer._markers and not viewer._overlays and _settings(viewer) == self._settings

    def render(self, height: int, width: int, cameras: Sequence[Mapping[str, Any]] | None) -> NDArray[np.uint8]:
        """See `Watch`."""
        viewer = env_viewers.find_viewer(self._scene.mujoco_renderer)
        self._shown = [] if viewer is None else [*viewer._markers]
        self._shown_at = self._scene.data.time
        frame = super().render(height, width, cameras)
        if viewer is not None:  # rendering clears the markers, but the user has yet to render the environment
            viewer._markers[:] = self._shown
        return frame


def renders_as_gymnasium(env: gym.Env[Any, Any]) -> bool:
    """Tell whether a `MujocoEnv`, unwrapped, renders with Gymnasium's code: no class or attribute replaces it."""
    scene = env_viewers.find_scene(env)
    return (
        scene is env
        and _render_methods(env, scene) == [MujocoEnv.render, MujocoEnv.render, MujocoRenderer.render]
        and _viewer_is_gymnasiums(scene.mujoco_renderer)
    )


def _viewer_is_gymnasiums(renderer: Any) -> bool:
    """Tell whether a `MujocoRenderer` has, or will make, a viewer whose methods are Gymnasium's."""
    viewer = env_viewers.find_viewer(renderer)
    return _METHODS.isdisjoint(vars(renderer)) and (
        viewer is None or (type(viewer) is OffScreenViewer and _METHODS.isdisjoint(vars(viewer)))
    )


def _render_methods(env: gym.Env[Any, Any], scene: Any) -> list[Any]:
    renders = (env.unwrapped.render, getattr(scene, "render", None), env_viewers.find_drawer(scene).render)
    return [getattr(render, "__func__", render) for render in renders]


def _settings(viewer: Any) -> list[Any]:
    """Collect what a viewer's frame depends on besides model, data, camera, markers and overlays."""
    return [value.tobytes() if isinstance(value, np.ndarray) else value for value in _read_settings(viewer)]
