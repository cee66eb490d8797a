"""Frames as states, for environments that cannot be rendered from a state: Atari, a real camera, a custom scene."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.rendering.scene_changes import SceneChange


class FrameStore:
    """Keeps the frames that an environment renders: a state is a frame, uint8 (H, W, 3), or (V, H, W, 3) of V views.

    Args:
        cameras: The cameras to render from, of `env_viewers.find_cameras`. None: the environment's own.
    """

    def __init__(self, cameras: Sequence[Mapping[str, Any]] | None = None) -> None:
        self._cameras = cameras
        self.num_views = 1 if cameras is None else len(cameras)

    def capture(self, env: gym.Env[Any, Any]) -> NDArray[np.uint8]:
        """The environment's current frame, or one from every camera: a copy.

        Raises:
            ValueError: A frame is not uint8 (H, W, 3).
        """
        if self._cameras is None:
            return check_frame(render_frame(env)).copy()
        from vlmrm_gym.rendering.env_viewers import render_views  # needs MuJoCo, which is optional

        frames = np.stack([check_frame(frame) for frame in render_views(env, self._cameras)])
        return frames if self.num_views > 1 else frames[0]

    def render(self, states: ArrayLike, changes: Sequence[SceneChange | None] | None = None) -> NDArray[np.uint8]:
        """The frames themselves; see `Renderer.render`. `changes` is ignored: a stored frame has no scene.

        Raises:
            ValueError: States are not frames.
        """
        frames = np.asarray(states)
        own_shape = (self.num_views,) if self.num_views > 1 else ()
        if frames.ndim != 4 + len(own_shape) or frames.shape[-1] != 3 or frames.dtype != np.uint8:
            sizes = ", ".join(["B", *map(str, own_shape), "H", "W", "3"])
            raise ValueError(f"`states` must be uint8 ({sizes}). Received {frames.dtype} {frames.shape}.")
        return frames

    def at_size(self, render_size: Callable[[int, int], tuple[int, int]]) -> "FrameStore":
        """This renderer: frames are stored at the environment's own size."""
        return self

    def is_equivalent(self, other: object) -> bool:
        """Whether the other renderer stores frames of as many views."""
        return isinstance(other, FrameStore) and self.num_views == other.num_views

    def close(self) -> None:
        """Nothing to free."""


def render_frame(env: gym.Env[Any, Any]) -> Any:
    """What `env.render()` returns; of an environment with a MuJoCo viewer, see `render_own`."""
    if "gymnasium.envs.mujoco.mujoco_rendering" not in sys.modules:
        return env.render()
    from vlmrm_gym.rendering.env_viewers import render_own  # needs MuJoCo, which is optional

    return render_own(env)


def check_frame(rendered: object) -> NDArray[np.uint8]:
    """The result of `render()` as an array.

    Raises:
        ValueError: It is not uint8 (H, W, 3).
    """
    frame = np.asarray(rendered)
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        hint = " Scale to 0..255 and convert." if frame.dtype.kind == "f" else ""
        raise ValueError(f"`render()` must return uint8 (H, W, 3). Received {frame.dtype} {frame.shape}.{hint}")
    return frame


def shrink(frame: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """A frame, uint8 (H, W, 3), in another size, each pixel the mean of its area."""
    from PIL import Image  # not needed for what is drawn from states

    return np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BOX))
