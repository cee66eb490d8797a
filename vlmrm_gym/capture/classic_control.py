"""Captures the states of cart-pole and mountain car."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pygame
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from vlmrm_gym.rendering.classic_control import CartPoleRenderer, MountainCarRenderer
from vlmrm_gym.rendering.scene_changes import SceneChange
from vlmrm_gym.rendering.stored import check_frame


class ClassicControlCapture:
    """Reads the states of one environment. Once its appearance has changed, its own frames are captured instead.

    Args:
        env: An environment of the kind that the renderer draws.
        renderer: Draws the states.
        appearance: Attributes that the frame depends on besides the state, with the values that the renderer draws.
    """

    def __init__(
        self, env: gym.Env[Any, Any], renderer: CartPoleRenderer | MountainCarRenderer, appearance: Mapping[str, float]
    ) -> None:
        self._env: Any = env.unwrapped
        self._renderer, self._appearance = renderer, appearance

    def reset(self) -> None:
        """Do nothing: the appearance is compared at every step."""

    def __call__(self) -> tuple[NDArray[np.float64], SceneChange | None]:
        """The state, float64 (state_size,), with the frame if the renderer would draw another one."""
        if getattr(self._env, "state", None) is None:
            raise ResetNeeded(f"{self._env} has no state to draw yet. Call `reset` first.")
        state = self._renderer.capture(self._env)
        if all(getattr(self._env, name) == value for name, value in self._appearance.items()):
            return state, None
        frame = check_frame(self._env.render())
        surface = pygame.surfarray.make_surface(frame.swapaxes(0, 1))
        resized = pygame.transform.smoothscale(surface, (self._renderer.width, self._renderer.height))
        return state, SceneChange(frame=np.ascontiguousarray(pygame.surfarray.array3d(resized).swapaxes(0, 1)))

    def close(self) -> None:
        """Do nothing: there are no resources."""
