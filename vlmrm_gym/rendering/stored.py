"""Frames as states, for environments that cannot be drawn again: Atari, a camera, a scene of the user's own."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray


class StoredFrames:
    """Keeps the frames that an environment renders: a state is a frame, uint8 (H, W, 3)."""

    def capture(self, env: gym.Env[Any, Any]) -> NDArray[np.uint8]:
        """The frame that the environment renders now, a copy.

        Raises:
            ValueError: The frame is not uint8 (H, W, 3).
        """
        return check_frame(env.render()).copy()

    def render(self, states: ArrayLike) -> NDArray[np.uint8]:
        """The frames themselves: uint8 (B, H, W, 3).

        Raises:
            ValueError: They are no frames.
        """
        frames = np.asarray(states)
        if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8:
            raise ValueError(f"`states` must be uint8 (B, H, W, 3). Received {frames.dtype} {frames.shape}.")
        return frames

    def close(self) -> None:
        """Nothing to let go of."""


def check_frame(rendered: object) -> NDArray[np.uint8]:
    """What `render()` returned, as an array.

    Raises:
        ValueError: It is not uint8 (H, W, 3).
    """
    frame = np.asarray(rendered)
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        raise ValueError(f"`render()` must return uint8 (H, W, 3). Received {frame.dtype} {frame.shape}.")
    return frame
