"""Captures: objects that read the states of one environment. MuJoCo and classic control have their own."""

from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rendering.renderer import EnvRenderer
from vlmrm_gym.rendering.scene_changes import SceneChange
from vlmrm_gym.rendering.states import States
from vlmrm_gym.rendering.stored import FrameStore


class Capture(Protocol):
    """Reads the states of one environment for one renderer."""

    def reset(self) -> None:
        """Call this after every reset of the environment: changes that only resets make are looked for then."""
        ...

    def __call__(self) -> tuple[NDArray[Any], SceneChange | None]:
        """The current state: a row of numbers, and how the scene differs from the renderer's (None: it does not)."""
        ...

    def close(self) -> None:
        """Free the graphics resources."""
        ...


class FrameCapture:
    """Captures the frames that an environment renders.

    Args:
        env: An environment made with `render_mode="rgb_array"`.
        renderer: The store of the frames.
    """

    def __init__(self, env: gym.Env[Any, Any], renderer: FrameStore) -> None:
        self._env, self._renderer = env, renderer

    def reset(self) -> None:
        """Do nothing: frames show every change."""

    def __call__(self) -> tuple[NDArray[np.uint8], None]:
        """A copy of the current frame, uint8 (H, W, 3)."""
        return self._renderer.capture(self._env), None

    def close(self) -> None:
        """Do nothing: there are no resources."""


class DrawingCapture:
    """Draws every state at once and captures the frame, for a later renderer that cannot draw this environment.

    Args:
        capture: Reads the environment's states for `renderer`.
        renderer: Draws them here.
        state_size: Length of the later renderer's states. They are filled with zeros.
    """

    def __init__(self, capture: Capture, renderer: EnvRenderer, state_size: int) -> None:
        self._capture, self._renderer, self._state_size = capture, renderer, state_size

    def reset(self) -> None:
        """Call this after every reset of the environment."""
        self._capture.reset()

    def __call__(self) -> tuple[NDArray[np.float64], SceneChange]:
        """Zeros, float64 (state_size,), and the current frame as a scene change."""
        state, change = self._capture()
        frame = States(state[None], [change]).draw(self._renderer)[0]
        return np.zeros(self._state_size), SceneChange(frame=frame)

    def close(self) -> None:
        """Free the graphics resources."""
        self._capture.close()
        self._renderer.close()
