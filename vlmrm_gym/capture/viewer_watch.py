"""Detects what a MuJoCo environment changes in Gymnasium's viewer: its camera, its options, and what it adds."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_env import MujocoEnv
from gymnasium.envs.mujoco.mujoco_rendering import BaseRender, MujocoRenderer, OffScreenViewer
from numpy.typing import NDArray

from vlmrm_gym.rendering.cameras import FIELDS, get_fields
from vlmrm_gym.rendering.env_viewers import camera_type, find_viewer, render_own, render_views
from vlmrm_gym.rendering.model_fields import same_value
from vlmrm_gym.rendering.mujoco import MuJoCoRenderer, make_options
from vlmrm_gym.rendering.stored import check_frame, shrink

_METHODS = frozenset({**vars(MujocoRenderer), **vars(BaseRender), **vars(OffScreenViewer)})
_groups = attrgetter(*(f"{kind}group" for kind in ("geom", "site", "joint", "tendon", "actuator", "flex", "skin")))
# What else counts, only counts together with one of these: a perturbation needs something that is selected or active.
_option_numbers = attrgetter("label", "frame", "bvh_depth", "flex_layer")
_perturbation_numbers = attrgetter("select", "flexselect", "skinselect", "active", "active2")
_scene_numbers = attrgetter("maxgeom", "enabletransform", "stereo", "framewidth")
_viewport_numbers = attrgetter("left", "bottom", "width", "height")
_camera_numbers = attrgetter(*(name for name in FIELDS if name != "lookat"))


class ViewerWatch:
    """Follows the camera that an environment renders with, and detects frames that show more than its state.

    Our renderer draws as a new viewer of Gymnasium's does, with the environment's `visual_options`. The environment has
    to render a frame itself if its viewer has other options or another MjData, a perturbation, markers or overlays, or
    if code other than Gymnasium's renders.

    Args:
        env: A `MujocoEnv`, unwrapped.
        renderer: Draws its states.
        camera: The fields of its camera now; see `vlmrm_gym.capture.mujoco.find_camera`.
    """

    def __init__(self, env: Any, renderer: MuJoCoRenderer, camera: Mapping[str, Any]) -> None:
        self._env = env
        self._first = self._camera = dict(camera)
        self._camera_numbers: tuple[Any, ...] | None = None
        own, (_, options, max_geom) = env.mujoco_renderer, renderer.look
        self._configuration = options, max_geom, own.width, own.height
        self._shown: list[Any] = []
        """The markers in the last frame that was captured, if they have been put back."""
        self._shown_at = -1.0
        viewport, scene = mujoco.MjrRect(0, 0, own.width, own.height), mujoco.MjvScene(env.model, max_geom)
        self._settings = _settings(make_options(options), mujoco.MjvPerturb(), scene, viewport)

    def camera(self) -> Mapping[str, Any]:
        """The fields of the camera now. The same object until one changes."""
        renderer = self._env.mujoco_renderer
        viewer = find_viewer(renderer)
        if viewer is None:  # its camera will begin with the configuration
            self._camera_numbers = None
            config = {**self._first, **(renderer.default_cam_config or {})}
            fields = {**config, "lookat": np.array(config["lookat"], dtype=np.float64)}
        else:
            numbers = renderer.camera_id, _camera_numbers(viewer.cam), viewer.cam.lookat.tobytes()
            if numbers == self._camera_numbers:
                return self._camera
            self._camera_numbers = numbers
            fields = get_fields(viewer.cam)
        fields["type"], fields["fixedcamid"] = camera_type(renderer), renderer.camera_id
        if not all(same_value(value, self._camera[name]) for name, value in fields.items()):
            self._camera = fields
        return self._camera

    def shows_state(self) -> bool:
        """Whether state, model and camera determine the environment's frame."""
        env = self._env
        if not renders_as_gymnasium(env):
            return False
        renderer = env.mujoco_renderer
        viewer = find_viewer(renderer)
        shown = renderer if viewer is None else viewer
        if shown.model is not env.model or shown.data is not env.data:
            return False
        if viewer is None:
            return (renderer._vopt, renderer.max_geom, renderer.width, renderer.height) == self._configuration
        if self._shown and env.data.time != self._shown_at:  # a marker is for one frame
            kept = [marker for marker in viewer._markers if all(marker is not shown for shown in self._shown)]
            viewer._markers[:], self._shown = kept, []
        if viewer._markers or viewer._overlays:
            return False
        return _settings(viewer.vopt, viewer.pert, viewer.scn, viewer.viewport) == self._settings

    def render(self, height: int, width: int, cameras: Sequence[Mapping[str, Any]] | None) -> NDArray[np.uint8]:
        """The environment's own frame in this size: uint8 (height, width, 3); of V > 1 cameras, (V, height, width, 3).

        Args:
            height: In pixels.
            width: In pixels.
            cameras: The cameras to render from. None: the environment's own.

        Raises:
            RuntimeError: The environment does not render from these cameras, or its viewer can no longer draw.
        """
        viewer = find_viewer(self._env.mujoco_renderer)
        self._shown = [] if viewer is None else [*viewer._markers]
        self._shown_at = self._env.data.time
        rendered = [render_own(self._env)] if cameras is None else render_views(self._env, cameras)
        if viewer is not None:  # rendering clears the markers, but the user has yet to render the environment
            viewer._markers[:] = self._shown
        frames = np.stack([shrink(check_frame(frame), height, width) for frame in rendered])
        return frames if len(frames) > 1 else frames[0]


def renders_as_gymnasium(env: Any) -> bool:
    """Whether a `MujocoEnv` renders with Gymnasium's own code: no class or attribute replaces a method."""
    if getattr(env.render, "__func__", None) is not MujocoEnv.render or type(env.mujoco_renderer) is not MujocoRenderer:
        return False
    viewer = find_viewer(env.mujoco_renderer)
    if viewer is not None and (type(viewer) is not OffScreenViewer or not _METHODS.isdisjoint(vars(viewer))):
        return False
    return _METHODS.isdisjoint(vars(env.mujoco_renderer))


def _settings(options: Any, perturbation: Any, scene: Any, viewport: Any) -> tuple[Any, ...]:
    """What a viewer's frame depends on besides model, data, camera, markers and overlays."""
    return (
        _option_numbers(options),
        _perturbation_numbers(perturbation),
        _scene_numbers(scene),
        _viewport_numbers(viewport),
        [array.tobytes() for array in (options.flags, scene.flags, *_groups(options))],
    )
