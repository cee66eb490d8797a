"""Frames as states, for environments that cannot be drawn again: Atari, a camera, a scene of the user's own."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.checks import check_positive_integer


class StoredFrames:
    """Keeps the frames that an environment renders; a state is a frame's pixels, uint8 (height * width * 3,).

    Args:
        height: Of the environment's frames, in pixels.
        width: Of the environment's frames, in pixels.

    Raises:
        ValueError: A size below 1.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, height: int, width: int) -> None:
        check_positive_integer("height", height)
        check_positive_integer("width", width)
        self.height, self.width = int(height), int(width)
        self.state_size = self.height * self.width * 3

    def capture(self, env: gym.Env[Any, Any]) -> NDArray[np.uint8]:
        """The pixels of the frame that the environment renders now.

        Raises:
            ValueError: The frame is not uint8 (height, width, 3).
        """
        frame = np.asarray(env.render())
        if frame.shape != (self.height, self.width, 3) or frame.dtype != np.uint8:
            raise ValueError(
                f"`render()` must return uint8 ({self.height}, {self.width}, 3) at every step. "
                f"Received {frame.dtype} {frame.shape}."
            )
        return frame.flatten()

    def render(self, states: ArrayLike) -> NDArray[np.uint8]:
        """The frames: uint8 (B, height, width, 3).

        Raises:
            ValueError: States of another width.
        """
        pixels = np.asarray(states, dtype=np.uint8)
        if pixels.ndim != 2 or pixels.shape[1] != self.state_size:
            raise ValueError(f"`states` must have the shape (B, {self.state_size}). Received {pixels.shape}.")
        return pixels.reshape(-1, self.height, self.width, 3)

    def close(self) -> None:
        """Nothing to let go of."""
