"""Frames that environments render themselves through MuJoCo: in which OpenGL context, and from which camera.

These are environments that have a `MujocoRenderer`, as Gymnasium's and Gymnasium-Robotics' do, and those of dm_control
(through Shimmy), which render from cameras of their models.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer, OffScreenViewer
from numpy.typing import ArrayLike

from vlmrm_gym.rendering.cameras import TYPES, get_fields, make_cameras, set_fields
from vlmrm_gym.rendering.opengl import as_current
from vlmrm_gym.validation import short_repr

CameraFields = Mapping[str, Any]
"""Fields of a `mujoco.MjvCamera`."""


def _find_source(env: gym.Env[Any, Any]) -> Any:
    """What renders the environment: a `MujocoRenderer`, dm_control's physics, or None."""
    unwrapped: Any = env.unwrapped
    physics = getattr(getattr(unwrapped, "_env", None), "physics", None)
    if physics is not None and isinstance(getattr(unwrapped, "render_kwargs", None), dict):
        return physics
    for owner in (unwrapped, *vars(unwrapped).values()):  # a maze renders through an environment that it contains
        renderer = getattr(owner.unwrapped if isinstance(owner, gym.Env) else owner, "mujoco_renderer", None)
        if isinstance(renderer, MujocoRenderer):
            return renderer
    return None


def find_viewer(renderer: Any) -> Any:
    """The viewer of an environment's `mujoco_renderer` that renders its arrays; None before the first frame."""
    return getattr(renderer, "_viewers", {}).get("rgb_array")


def camera_type(renderer: Any) -> mujoco.mjtCamera:
    """The type of camera that Gymnasium chooses at every frame: a camera of the model, or a free one."""
    return TYPES["free" if renderer.camera_id == -1 else "fixed"]


def initial_camera(renderer: Any, qpos: ArrayLike) -> dict[str, Any]:
    """The camera configuration of a `mujoco_renderer`; what it leaves open is taken from a pose, float64 (nq,)."""
    data = mujoco.MjData(renderer.model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(renderer.model, data)
    defaults = {"lookat": np.median(data.geom_xpos, axis=0), "distance": renderer.model.stat.extent}
    return {**defaults, **(renderer.default_cam_config or {})}


def own_camera(renderer: Any, qpos: ArrayLike) -> mujoco.MjvCamera:
    """The camera that a `mujoco_renderer` renders with; before it has rendered, `initial_camera` in a pose."""
    viewer = find_viewer(renderer)
    camera = mujoco.MjvCamera()
    set_fields(camera, initial_camera(renderer, qpos) if viewer is None else get_fields(viewer.cam))
    camera.type, camera.fixedcamid = camera_type(renderer), renderer.camera_id
    return camera


def find_cameras(env: gym.Env[Any, Any], camera: Any) -> list[CameraFields] | None:
    """The cameras that a user describes; None if the environment cannot render from a chosen camera.

    Raises:
        ValueError: `make_cameras` rejects them, or the environment cannot render from one of them.
    """
    source = _find_source(env)
    if source is None:
        return None
    if isinstance(source, MujocoRenderer):
        own = own_camera(source, source.model.qpos0)
        return [get_fields(one) for one in make_cameras(source.model, camera, own)]
    cameras = make_cameras(source.model.ptr, camera)
    if any(one.type != TYPES["fixed"] for one in cameras):
        raise ValueError(
            f"`camera`: {env.unwrapped} renders from cameras of its model, by name or number, only. "
            f"Received {short_repr(camera)}."
        )
    return [get_fields(one) for one in cameras]


def render_own(env: gym.Env[Any, Any]) -> Any:
    """What `env.render()` returns, drawn in the OpenGL context of the environment's viewer.

    Gymnasium's viewers draw in whichever context is current. Once another one has been made, that is not theirs.

    Raises:
        RuntimeError: The viewer can no longer draw, and the frame is black.
    """
    viewer = find_viewer(_find_source(env))
    if not isinstance(viewer, OffScreenViewer):
        return env.render()
    with as_current(viewer.opengl_context):
        frame: Any = env.render()
        if not np.any(frame) and not _can_draw(viewer):
            raise RuntimeError(
                f"The frame of {env.unwrapped} is black because its MuJoCo viewer can no longer draw. It was closed, "
                "or the viewer of another environment deleted its OpenGL objects when it was garbage-collected: keep "
                "a reference to every environment that has rendered until you are done with all of them."
            )
    return frame


def _can_draw(viewer: OffScreenViewer) -> bool:
    """Whether white pixels that are drawn can be read: then a black frame is that of a black scene."""
    viewer._set_mujoco_buffer()
    pixels = np.full((3 * viewer.viewport.height * viewer.viewport.width, 1), 255, dtype=np.uint8)
    mujoco.mjr_drawPixels(pixels, None, viewer.viewport, viewer.con)
    pixels[:] = 0
    mujoco.mjr_readPixels(pixels, None, viewer.viewport, viewer.con)
    return bool(pixels.any())


def render_views(env: gym.Env[Any, Any], cameras: Sequence[CameraFields]) -> list[Any]:
    """What the environment renders from each camera, markers in its viewer included. Its own camera stays as it was.

    Raises:
        RuntimeError: The environment does not render from the camera that its viewer has.
    """
    source, unwrapped = _find_source(env), env.unwrapped
    if source is not None and not isinstance(source, MujocoRenderer):
        kwargs: dict[str, Any] = unwrapped.render_kwargs  # pyright: ignore[reportAttributeAccessIssue]
        frames = []
        for camera in cameras:
            with _attribute_set(unwrapped, "render_kwargs", {**kwargs, "camera_id": int(camera["fixedcamid"])}):
                frames.append(env.render())
        return frames
    viewer = None if source is None else source._get_viewer("rgb_array")
    if not isinstance(viewer, OffScreenViewer):
        raise _unused_camera(env)
    before, markers = get_fields(viewer.cam), list(viewer._markers)
    try:
        with _attribute_set(source, "camera_id", None):  # the viewer's camera counts, whatever its type
            return [_render_view(env, viewer, camera, markers) for camera in cameras]
    finally:
        set_fields(viewer.cam, before)


def _render_view(env: gym.Env[Any, Any], viewer: OffScreenViewer, camera: CameraFields, markers: list[Any]) -> Any:
    """What the environment renders from one camera."""
    set_fields(viewer.cam, camera)
    viewer._markers[:] = markers  # rendering clears them
    position = viewer.scn.camera[0].pos
    position[:] = np.nan
    frame = render_own(env)
    used = get_fields(viewer.cam)
    given = [name for name in camera if name != "lookat" or camera["type"] != TYPES["tracking"]]  # that follows
    if np.isnan(position).any() or not all(np.array_equal(used[name], camera[name]) for name in given):
        raise _unused_camera(env)
    return frame


def _unused_camera(env: gym.Env[Any, Any]) -> RuntimeError:
    return RuntimeError(
        f"`camera`: {env.unwrapped} does not render from a chosen camera: its own code draws the frame, or sets the "
        "camera. Leave `camera` out."
    )


@contextmanager
def _attribute_set(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
