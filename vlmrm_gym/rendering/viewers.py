"""Frames that environments render themselves through MuJoCo: what renders them, and in which OpenGL context."""

from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer, OffScreenViewer

from vlmrm_gym.rendering.opengl import as_current


def find_source(env: gym.Env[Any, Any]) -> Any:
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


def render_own(env: gym.Env[Any, Any]) -> Any:
    """What `env.render()` returns, drawn in the OpenGL context of the environment's viewer.

    Gymnasium's viewers draw in whichever context is current. Once another one has been made, that is not theirs.

    Raises:
        RuntimeError: The viewer can no longer draw, and the frame is black.
    """
    source = find_source(env)
    viewer = find_viewer(source) if isinstance(source, MujocoRenderer) else None
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
