"""Decides by trying whether what an environment shows is drawn from its MuJoCo states, or stored."""

import copy
import warnings
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer
from numpy.typing import NDArray

from vlmrm_gym.capture.viewer_watch import Watch
from vlmrm_gym.rendering.cameras import set_fields
from vlmrm_gym.rendering.env_viewers import discard_viewer, find_drawer, find_viewer, own_size, render_own
from vlmrm_gym.rendering.mujoco import MuJoCoRenderer

_FIRST = 2
"""Number of states that are tried at first."""


class Trial:
    """Draws states both ways: as the environment renders them, and as a renderer does, with shadows and reflections.

    Two states are tried at first, and the first one after the second reset, the fourth, the eighth and so on. As long
    as the pixels are equal, states are captured; from a difference on, the environment's frames.

    Args:
        env: An environment with a scene; see `find_scene`.
        failed: Whether its frames are stored without trying, because a wrapper changes what it renders.
    """

    def __init__(self, env: gym.Env[Any, Any], *, failed: bool) -> None:
        self._env, self.failed = env, failed
        self._num_due, self._num_resets, self._last_passed = _FIRST, 0, 0

    def reset(self) -> None:
        """Call this after every reset of the environment."""
        self._num_resets += 1
        if self._num_resets & (self._num_resets - 1) == 0:
            self._num_due = max(self._num_due, 1)

    def __call__(self, scene: Any, watch: Watch, renderer: MuJoCoRenderer, *, own_camera: bool) -> bool:
        """Whether the current state is drawn as the environment renders it.

        Args:
            scene: The environment's scene. Its model and data must be restored afterwards.
            watch: Knows its camera.
            renderer: Draws its states.
            own_camera: Whether it draws them from the environment's own camera.
        """
        if self._num_due == 0:
            return True
        self._num_due -= 1
        model, state, camera = copy.copy(scene.model), renderer.capture(scene), watch.camera()
        drawer = find_drawer(scene)
        is_first = find_viewer(drawer) is None
        shown = render_own(self._env)
        if is_first and not own_camera:  # it is not pinned, and a new viewer of Gymnasium's has chosen it
            camera = watch.camera()
        drawn = _draw(model, state, camera, own_size(scene), renderer)
        if is_first and isinstance(find_viewer(drawer), OffScreenViewer):
            discard_viewer(drawer)
        self.failed = not np.array_equal(drawn, shown)
        if self.failed and self._last_passed:
            warnings.warn(
                f"{self._env.unwrapped} shows more than its MuJoCo state in episode {self._num_resets}: its frames are "
                f"stored from now on. Rewards since episode {self._last_passed} may be of frames without it.",
                stacklevel=2,
            )
        elif self._num_due == 0:
            self._last_passed = self._num_resets
        return not self.failed


def _draw(
    model: mujoco.MjModel,
    state: NDArray[np.float64],
    fields: Mapping[str, Any],
    size: tuple[int, int],
    renderer: MuJoCoRenderer,
) -> NDArray[np.uint8]:
    """A state at faithful quality, from the camera with these fields: uint8 (H, W, 3)."""
    camera = mujoco.MjvCamera()
    set_fields(camera, fields)
    _, options, max_geom = renderer.look
    own = MuJoCoRenderer(model, *size, camera=camera, quality="faithful", visual_options=options, max_geom=max_geom)
    with closing(own):
        return own.render(state[None])[0]
