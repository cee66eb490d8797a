"""Chosen cameras of environments that are not drawn from their states, but render through MuJoCo.

These are dm_control's (through Shimmy), and those of Gymnasium-Robotics and others that have a `MujocoRenderer`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer

from vlmrm_gym.rendering.cameras import get_fields, set_fields
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
    source = _find_source(env)
    if source is None:
        return None
    is_dm_control = not isinstance(source, MujocoRenderer)
    if is_dm_control:
        cameras = make_cameras(source.model.ptr, camera)
    else:
        cameras = make_cameras(source.model, camera, _own_camera(source))
    for one in cameras:
        if one.type == _TRACKING or (is_dm_control and one.type != _FIXED):
            kinds = "cameras of its model, by name or number" if is_dm_control else "free cameras and its model's own"
            raise ValueError(f"`camera`: {env.unwrapped} renders from {kinds}, only. Received {camera!r}.")
    return [get_fields(one) for one in cameras]


def render_views(env: gym.Env[Any, Any], cameras: Sequence[CameraFields]) -> list[Any]:
    """What the environment renders from each camera, markers in its viewer included. Its own camera stays as it was."""
    source, unwrapped, frames = _find_source(env), cast(Any, env.unwrapped), []
    if not isinstance(source, MujocoRenderer):
        for camera in cameras:
            with _item_set(unwrapped.render_kwargs, "camera_id", int(camera["fixedcamid"])):
                frames.append(env.render())
        return frames
    viewer = source._get_viewer("rgb_array")
    before, markers = get_fields(viewer.cam), list(viewer._markers)
    try:
        for camera in cameras:
            set_fields(viewer.cam, camera)
            viewer._markers[:] = markers  # rendering clears them
            number = int(camera["fixedcamid"]) if camera["type"] == _FIXED else -1
            with _item_set(vars(source), "camera_id", number):
                frames.append(env.render())
    finally:
        set_fields(viewer.cam, before)
    return frames


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


def _own_camera(renderer: MujocoRenderer) -> mujoco.MjvCamera:
    """The camera that an environment renders with; before it has rendered, as in the model's initial pose."""
    camera = mujoco.MjvCamera()
    if (viewer := renderer._viewers.get("rgb_array")) is not None:
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
