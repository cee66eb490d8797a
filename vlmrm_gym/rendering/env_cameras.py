"""Chosen cameras of environments that are not drawn from their states, but render through MuJoCo.

These are dm_control's (through Shimmy), and those of Gymnasium-Robotics and others that have a `MujocoRenderer`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer, OffScreenViewer

from vlmrm_gym.rendering.cameras import get_fields, set_fields
from vlmrm_gym.rendering.viewers import find_source, find_viewer, render_own
from vlmrm_gym.rendering.views import make_cameras

CameraFields = Mapping[str, Any]
"""Fields of a `mujoco.MjvCamera`."""
_FREE, _FIXED = mujoco.mjtCamera.mjCAMERA_FREE, mujoco.mjtCamera.mjCAMERA_FIXED
_TRACKING = mujoco.mjtCamera.mjCAMERA_TRACKING


def find_cameras(env: gym.Env[Any, Any], camera: Any) -> list[CameraFields] | None:
    """The cameras that a user describes; None if the environment cannot render from a chosen camera.

    Raises:
        ValueError: `make_cameras` rejects them, or the environment cannot render from one of them.
    """
    source = find_source(env)
    if source is None:
        return None
    is_dm_control = not isinstance(source, MujocoRenderer)
    if is_dm_control:
        cameras = make_cameras(source.model.ptr, camera)
    else:
        cameras = make_cameras(source.model, camera, _own_camera(source))
    if is_dm_control and any(one.type != _FIXED for one in cameras):
        raise ValueError(
            f"`camera`: {env.unwrapped} renders from cameras of its model, by name or number, only. "
            f"Received {camera!r}."
        )
    return [get_fields(one) for one in cameras]


def render_views(env: gym.Env[Any, Any], cameras: Sequence[CameraFields]) -> list[Any]:
    """What the environment renders from each camera, markers in its viewer included. Its own camera stays as it was.

    Raises:
        RuntimeError: The environment does not render from the camera that its viewer has.
    """
    source, unwrapped = find_source(env), cast(Any, env.unwrapped)
    if source is not None and not isinstance(source, MujocoRenderer):
        frames = []
        for camera in cameras:
            with _item_set(unwrapped.render_kwargs, "camera_id", int(camera["fixedcamid"])):
                frames.append(env.render())
        return frames
    viewer = None if source is None else source._get_viewer("rgb_array")
    if not isinstance(viewer, OffScreenViewer):
        raise _unused_camera(unwrapped)
    before, markers = get_fields(viewer.cam), list(viewer._markers)
    try:
        with _item_set(vars(source), "camera_id", None):  # the viewer's camera counts, whatever its type
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
    wanted = {**camera, "lookat": viewer.cam.lookat} if camera["type"] == _TRACKING else camera
    used = get_fields(viewer.cam)
    if np.isnan(position).any() or not all(np.array_equal(used[name], value) for name, value in wanted.items()):
        raise _unused_camera(env.unwrapped)
    return frame


def _unused_camera(env: Any) -> RuntimeError:
    return RuntimeError(
        f"`camera`: {env} does not render from a chosen camera: its own code draws the frame, or sets the camera. "
        "Leave `camera` out."
    )


def _own_camera(renderer: MujocoRenderer) -> mujoco.MjvCamera:
    """The camera that an environment renders with; before it has rendered, as in the model's initial pose."""
    camera = mujoco.MjvCamera()
    if (viewer := find_viewer(renderer)) is not None:
        set_fields(camera, get_fields(viewer.cam))
    else:
        data = mujoco.MjData(renderer.model)
        mujoco.mj_kinematics(renderer.model, data)
        defaults = {"lookat": np.median(data.geom_xpos, axis=0), "distance": renderer.model.stat.extent}
        set_fields(camera, {**defaults, **(renderer.default_cam_config or {})})
    camera.type, camera.fixedcamid = _FREE if renderer.camera_id == -1 else _FIXED, renderer.camera_id
    return camera


@contextmanager
def _item_set(mapping: dict[str, Any], key: str, value: Any) -> Iterator[None]:
    """Set an item for a while."""
    before = dict(mapping)
    mapping[key] = value
    try:
        yield
    finally:
        if key in before:
            mapping[key] = before[key]
        else:
            del mapping[key]
