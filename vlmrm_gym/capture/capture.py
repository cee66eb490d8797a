"""Captures: objects that read the states of one environment. MuJoCo has its own."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from vlmrm_gym.rendering.scene_changes import SceneChange
from vlmrm_gym.rendering.states import EnvRenderer, States
from vlmrm_gym.rendering.stored import FrameStore, check_frame, resize


class Capture(ABC):
    """Reads the states of one environment for one renderer."""

    @abstractmethod
    def __call__(self) -> tuple[NDArray[Any], SceneChange | None]:
        """The current state: a row of numbers, and how the scene differs from the renderer's (None: it does not)."""

    def reset(self) -> None:  # noqa: B027
        """Call this after every reset of the environment: changes that only resets make are looked for then."""

    def close(self) -> None:  # noqa: B027
        """Free the graphics resources, if there are any."""


class FrameCapture(Capture):
    """Captures the frames that an environment renders."""

    def __init__(self, env: gym.Env[Any, Any], renderer: FrameStore) -> None:
        self._env, self._renderer = env, renderer

    def __call__(self) -> tuple[NDArray[np.uint8], None]:
        """A copy of the current frame, uint8 (H, W, 3)."""
        return self._renderer.capture(self._env), None


class ClassicControlCapture(Capture):
    """Reads the states of cart-pole or mountain car. Once the appearance has changed, the environment's own frames.

    The appearance are the attributes that the frame depends on besides the state, with the values that are drawn.
    """

    def __init__(self, env: gym.Env[Any, Any], renderer: Any, appearance: Mapping[str, float]) -> None:
        self._env: Any = env
        self._renderer, self._appearance = renderer, appearance

    def __call__(self) -> tuple[NDArray[np.float64], SceneChange | None]:
        """The state, float64 (state_size,), with the frame if the renderer would draw another one."""
        if getattr(self._env, "state", None) is None:
            raise ResetNeeded(f"{self._env} has no state to draw yet. Call `reset` first.")
        state = self._renderer.capture(self._env)
        if all(getattr(self._env, name) == value for name, value in self._appearance.items()):
            return state, None
        frame = check_frame(self._env.render())
        return state, SceneChange(frame=resize(frame, self._renderer.height, self._renderer.width))


class DrawingCapture(Capture):
    """Draws every state at once and captures the frame, for a later renderer that cannot draw this environment.

    That renderer's states, `state_size` numbers, are filled with zeros.
    """

    def __init__(self, capture: Capture, renderer: EnvRenderer, state_size: int) -> None:
        self._capture, self._renderer, self._state_size = capture, renderer, state_size

    def reset(self) -> None:
        """See `Capture`."""
        self._capture.reset()

    def __call__(self) -> tuple[NDArray[np.float64], SceneChange]:
        """Zeros, float64 (state_size,), and the current frame as a scene change."""
        state, change = self._capture()
        frame = States(state[None], [change]).draw(self._renderer)[0]
        return np.zeros(self._state_size), SceneChange(frame=frame)

    def close(self) -> None:
        """See `Capture`."""
        self._capture.close()
        self._renderer.close()
