"""Frames as states, for environments that cannot be rendered from a state: Atari, a real camera, a custom scene."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.states.scene_changes import SceneChange


class FrameStore:
    """Keeps the frames that an environment renders: a state is a frame, uint8 (H, W, 3)."""

    def capture(self, env: gym.Env[Any, Any]) -> NDArray[np.uint8]:
        """Copy the environment's current frame."""
        return check_frame(env.render()).copy()

    def render(self, states: ArrayLike, changes: Sequence[SceneChange | None] | None = None) -> NDArray[np.uint8]:
        """Return the frames themselves; see `Renderer.render`. `changes` is ignored: a stored frame has no scene."""
        frames = np.asarray(states)
        if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8:
            raise ValueError(f"`states` must be uint8 (B, H, W, 3). Received {frames.dtype} {frames.shape}.")
        return frames

    def at_size(self, render_size: Callable[[int, int], tuple[int, int]]) -> "FrameStore":
        """Return this renderer: frames are stored at the environment's own size."""
        return self

    def is_equivalent(self, other: object) -> bool:
        """Tell whether the other renderer stores frames."""
        return isinstance(other, FrameStore)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def check_frame(rendered: object) -> NDArray[np.uint8]:
    """Check the result of `render()`, and return it as an array; a ValueError unless it is uint8 (H, W, 3)."""
    frame = np.asarray(rendered)
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        hint = " Scale to 0..255 and convert." if frame.dtype.kind == "f" else ""
        raise ValueError(f"`render()` must return uint8 (H, W, 3). Received {frame.dtype} {frame.shape}.{hint}")
    return frame


def resize(frame: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Resize a frame, uint8 (H, W, 3): each pixel the mean of its area; interpolated if it is larger."""
    from PIL import Image  # not needed for what is drawn from states

    is_larger = height > frame.shape[0] or width > frame.shape[1]
    filter = Image.Resampling.BICUBIC if is_larger else Image.Resampling.BOX
    return np.asarray(Image.fromarray(frame).resize((width, height), filter))
