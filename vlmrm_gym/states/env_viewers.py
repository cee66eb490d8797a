"""Renders frames through an environment's own MuJoCo viewer: in which OpenGL context, and from which camera."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_env import MujocoEnv
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer, OffScreenViewer

from vlmrm_gym.states.cameras import TYPES, from_fields, get_fields, set_fields
from vlmrm_gym.states.opengl import as_current

CameraFields = Mapping[str, Any]
"""Fields of a `mujoco.MjvCamera`."""


class PhysicsScene:
    """Gives an unwrapped environment of dm_control's (through Shimmy) the model and data of its physics."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.unwrapped = self

    physics = property(lambda self: self.env._env.physics, doc="What simulates and draws now.")
    model = property(lambda self: self.physics.model.ptr, doc="`mujoco.MjModel`.")
    data = property(lambda self: self.physics.data.ptr, doc="`mujoco.MjData`.")


def find_scene(env: gym.Env[Any, Any]) -> Any:
    """Find the object with the MuJoCo model and data that an environment shows; None without one.

    An environment with a `MujocoRenderer`: itself, or one that it contains, as a maze does; or a `PhysicsScene`.
    """
    unwrapped: Any = env.unwrapped
    shimmy = isinstance(getattr(unwrapped, "render_kwargs", None), dict)
    if shimmy and hasattr(getattr(unwrapped, "_env", None), "physics"):
        return PhysicsScene(unwrapped)
    for owner in (unwrapped, *vars(unwrapped).values()):
        scene: Any = owner.unwrapped if isinstance(owner, gym.Env) else None
        if isinstance(getattr(scene, "mujoco_renderer", None), MujocoRenderer):
            return scene
    return None


def find_drawer(scene: Any) -> Any:
    """Find the object whose `render` draws a scene of `find_scene`."""
    return scene.physics if isinstance(scene, PhysicsScene) else scene.mujoco_renderer


def own_size(scene: Any) -> tuple[int, int]:
    """(height, width) of the environment's own frames."""
    if isinstance(scene, PhysicsScene):
        kwargs = scene.env.render_kwargs
        return kwargs.get("height", 240), kwargs.get("width", 320)  # the defaults of `Physics.render`
    return scene.mujoco_renderer.height, scene.mujoco_renderer.width


def find_look(scene: Any) -> dict[str, Any]:
    """Find the visual options and the maximum number of geoms that an environment renders with."""
    if isinstance(scene, PhysicsScene):
        return {"visual_options": {}, "max_geom": 10_000}
    return {"visual_options": dict(scene.mujoco_renderer._vopt), "max_geom": scene.mujoco_renderer.max_geom}


def find_camera(scene: Any) -> mujoco.MjvCamera:
    """Find the camera that an environment uses: of a `MujocoRenderer`, its `camera_id` and `default_cam_config`.

    What these leave open, Gymnasium takes from the state of the first call of `render`. Before that call it is taken
    from the initial pose, so that the frame of a state does not depend on earlier ones: see `pin_camera`.
    """
    return from_fields(read_camera(scene, initial_view(scene)))


def read_camera(scene: Any, initial: CameraFields) -> CameraFields:
    """Read the fields of `find_camera` as they are now; `initial` are those of `initial_view`."""
    if isinstance(scene, PhysicsScene):
        camera = mujoco.MjvCamera()
        mujoco.mjv_defaultFreeCamera(scene.model, camera)
        chosen = scene.env.render_kwargs.get("camera_id", -1)
        number = scene.model.camera(chosen).id if isinstance(chosen, str) else chosen
    else:
        renderer = scene.mujoco_renderer
        viewer, number = find_viewer(renderer), renderer.camera_id
        camera = from_fields({**initial, **(renderer.default_cam_config or {})}) if viewer is None else viewer.cam
    return {**get_fields(camera), "type": TYPES["free" if number == -1 else "fixed"], "fixedcamid": number}


def pin_camera(scene: Any) -> None:
    """Make an environment render with the camera that `find_camera` returns, so that it shows what is scored."""
    if not isinstance(scene, PhysicsScene) and find_viewer(scene.mujoco_renderer) is None:
        renderer = scene.mujoco_renderer
        renderer.default_cam_config = {**initial_view(scene), **(renderer.default_cam_config or {})}


def initial_view(scene: Any) -> CameraFields:
    """Compute what a camera looks at, and from how far, in the initial pose, as Gymnasium does in the current one."""
    data = mujoco.MjData(scene.model)
    data.qpos[:] = scene.init_qpos if isinstance(scene, MujocoEnv) else scene.model.qpos0
    mujoco.mj_kinematics(scene.model, data)
    return {"lookat": np.median(data.geom_xpos, axis=0), "distance": scene.model.stat.extent}


def find_viewer(renderer: Any) -> Any:
    """Find the viewer of an environment's `mujoco_renderer` that renders its arrays; None before the first frame."""
    return getattr(renderer, "_viewers", {}).get("rgb_array")


def discard_viewer(renderer: MujocoRenderer) -> None:
    """Free the viewer that renders arrays. The next frame makes another, whose camera begins anew."""
    viewer: Any = renderer._viewers.pop("rgb_array")
    renderer.viewer = None
    with as_current(viewer.opengl_context):
        viewer.con.free()
    viewer.close()


def render_own(env: gym.Env[Any, Any]) -> Any:
    """Call `env.render()` in the OpenGL context of its viewer: Gymnasium's viewers draw in whichever is current."""
    viewer = find_viewer(getattr(find_scene(env), "mujoco_renderer", None))
    if not isinstance(viewer, OffScreenViewer):
        with _remedy_named(env):
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
    """Tell whether white pixels that are drawn can be read: then a black frame is that of a black scene."""
    viewer._set_mujoco_buffer()
    pixels = np.full((3 * viewer.viewport.height * viewer.viewport.width, 1), 255, dtype=np.uint8)
    mujoco.mjr_drawPixels(pixels, None, viewer.viewport, viewer.con)
    pixels[:] = 0
    mujoco.mjr_readPixels(pixels, None, viewer.viewport, viewer.con)
    return bool(pixels.any())


def render_views(env: gym.Env[Any, Any], cameras: Sequence[CameraFields]) -> list[Any]:
    """Render the environment from each camera, markers in its viewer included. Its own camera stays as it was."""
    scene = find_scene(env)
    if isinstance(scene, PhysicsScene):
        if any(camera["type"] != TYPES["fixed"] for camera in cameras):
            raise _unused_camera(env)
        frames, kwargs = [], scene.env.render_kwargs
        for camera in cameras:
            with attribute_set(scene.env, "render_kwargs", {**kwargs, "camera_id": int(camera["fixedcamid"])}):
                frames.append(env.render())
        return frames
    source = scene.mujoco_renderer
    with _remedy_named(env):
        viewer = source._get_viewer("rgb_array")
    if not isinstance(viewer, OffScreenViewer):
        raise _unused_camera(env)
    before, markers = get_fields(viewer.cam), list(viewer._markers)
    try:
        with attribute_set(source, "camera_id", None):  # the viewer's camera counts, whatever its type
            return [_render_view(env, viewer, camera, markers) for camera in cameras]
    finally:
        set_fields(viewer.cam, before)


def _render_view(env: gym.Env[Any, Any], viewer: OffScreenViewer, camera: CameraFields, markers: list[Any]) -> Any:
    set_fields(viewer.cam, camera)
    viewer._markers[:] = markers  # rendering clears them
    position = viewer.scn.camera[0].pos
    position[:] = np.nan
    frame = render_own(env)
    used = get_fields(viewer.cam)
    compared = [name for name in camera if name != "lookat" or camera["type"] != TYPES["tracking"]]  # that follows
    if np.isnan(position).any() or any(used[name] != camera[name] for name in compared):
        raise _unused_camera(env)
    return frame


@contextmanager
def _remedy_named(env: gym.Env[Any, Any]) -> Iterator[None]:
    """Say what to do if MuJoCo finds no OpenGL context: Gymnasium asks for a window system first."""
    try:
        yield
    except mujoco.FatalError as error:
        raise RuntimeError(
            f"{env.unwrapped} cannot render its own frames, which are needed here: {error}. On a machine without a "
            "display set the environment variable MUJOCO_GL=egl or MUJOCO_GL=osmesa before Python starts."
        ) from error


def _unused_camera(env: gym.Env[Any, Any]) -> RuntimeError:
    return RuntimeError(
        f"`camera`: {env.unwrapped} does not render from a chosen camera: its own code draws the frame, or sets the "
        "camera. Leave `camera` out."
    )


@contextmanager
def attribute_set(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of an object, or one in place of its class's, for a while."""
    before = {key: kept for key, kept in vars(owner).items() if key == name}
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name)
        vars(owner).update(before)
