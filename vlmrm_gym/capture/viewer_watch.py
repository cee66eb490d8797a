"""Detects what a MuJoCo environment changes in Gymnasium's viewer: its camera, and markers that it adds."""

from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vlmrm_gym.rendering.cameras import get_fields
from vlmrm_gym.rendering.model_fields import same_value


class ViewerWatch:
    """Follows the camera that an environment renders with, and renders its markers, which no state contains.

    Args:
        env: A `MujocoEnv`, unwrapped.
        camera: The fields of its camera now; see `vlmrm_gym.capture.mujoco.find_camera`.
    """

    def __init__(self, env: Any, camera: Mapping[str, Any]) -> None:
        self._env = env
        self._first = self._camera = dict(camera)

    def camera(self) -> Mapping[str, Any]:
        """The fields of the camera now. The same object until one changes."""
        renderer = self._env.mujoco_renderer
        if renderer.viewer is None:  # its camera will begin with the configuration
            config = {**self._first, **(renderer.default_cam_config or {})}
            fields = {**config, "lookat": np.array(config["lookat"], dtype=np.float64)}
        else:
            fields = get_fields(renderer.viewer.cam)
        fields["type"], fields["fixedcamid"] = camera_type(renderer), renderer.camera_id
        if not all(same_value(value, self._camera[name]) for name, value in fields.items()):
            self._camera = fields
        return self._camera

    def render_markers(self, height: int, width: int) -> NDArray[np.uint8] | None:
        """The environment's own frame in this size, uint8 (height, width, 3), if it has added markers; else None."""
        viewer = self._env.mujoco_renderer.viewer
        if viewer is None or not viewer._markers:
            return None
        markers = list(viewer._markers)
        frame = Image.fromarray(self._env.render())
        viewer._markers[:] = markers  # rendering clears them, but the environment has yet to be rendered by its user
        return np.asarray(frame.resize((width, height), Image.Resampling.BOX))


def camera_type(renderer: Any) -> mujoco.mjtCamera:
    """The type of camera that Gymnasium chooses at every frame: a camera of the model, or a free one."""
    return mujoco.mjtCamera.mjCAMERA_FREE if renderer.camera_id == -1 else mujoco.mjtCamera.mjCAMERA_FIXED
