"""Stubs for `benchmarks/fps.py` and `benchmarks/driver.py`, to time one stage without the others.

In a separate file, because the workers import it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

import vlmrm_gym  # CLIPReward is looked up lazily: rendering needs no torch
from vlmrm_gym.states import Renderer

SizeToDraw = Callable[[int, int], tuple[int, int]]


class DrawOnly(vlmrm_gym.RewardModel):
    """A reward model that ignores the frames: all rewards are 0.

    Args:
        render_size: `render_size` of the model that it replaces.
        frames_at_once: `batch_size` of the model that it replaces.
        ignored: Positional arguments of `CLIPReward`.
        also_ignored: Keyword arguments of `CLIPReward`.
    """

    feature_size = 1

    def __init__(self, render_size: SizeToDraw, frames_at_once: int, *ignored: object, **also_ignored: object) -> None:
        self.render_size, self.batch_size = render_size, frames_at_once

    def encode(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Zeros, float32 (B, 1), for frames, uint8 (B, H, W, 3)."""
        return np.zeros((len(frames), 1), dtype=np.float32)


@dataclass(frozen=True)
class BuiltBy(vlmrm_gym.RewardSpec):
    """A reward specification that calls a factory."""

    make: Callable[..., Any]

    def build(self, device: str = "auto") -> Any:
        """The reward model."""
        return self.make(device=device)


class ReadyFrames:
    """Renders one state once and returns its frame for every state.

    Args:
        renderer: Renders that state.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._frames = np.empty((0, 0, 0, 3), dtype=np.uint8)

    def render(self, states: ArrayLike, changes: object = None) -> NDArray[np.uint8]:
        """Frames, uint8 (B, H, W, 3), for states (B, ...)."""
        states = np.asarray(states)
        if len(self._frames) < len(states):
            self._frames = np.repeat(self._renderer.render(states[:1]), len(states), axis=0)
        return self._frames[: len(states)]

    def close(self) -> None:
        """Close the renderer."""
        self._renderer.close()


def drawn_at_height(height: int, model: str = "tiny", **options: Any) -> Any:
    """Make a `CLIPReward` whose frames are drawn at another height, in pixels; the width keeps the aspect ratio."""

    class Drawn(vlmrm_gym.CLIPReward):
        render_size = _Height(height)  # pyright: ignore

    return Drawn(model, **options)


@dataclass(frozen=True)
class _Height:
    pixels: int

    def __call__(self, height: int, width: int) -> tuple[int, int]:
        return self.pixels, max(1, round(width * self.pixels / height))


def same_size(height: int, width: int) -> tuple[int, int]:
    """Render at the environment's own size."""
    return height, width


class Blank:
    """Returns preallocated black frames, uint8 (B, 1, 1, 3), for B states."""

    def __init__(self) -> None:
        self._frames = np.zeros((0, 1, 1, 3), dtype=np.uint8)

    def render(self, states: ArrayLike, changes: object = None) -> NDArray[np.uint8]:
        """Black pixels."""
        if len(self._frames) < (count := np.shape(states)[0]):
            self._frames = np.zeros((count, 1, 1, 3), dtype=np.uint8)
        return self._frames[:count]

    def close(self) -> None:
        """Close the renderer."""


class FreeEnvs(VectorEnv[Any, Any, Any]):
    """Environments with a free step. They render frames of 192 bytes, the size of a humanoid's state.

    Args:
        num_envs: Number of environments.
        length: Steps per episode; all are truncated together, and the next step only resets.
    """

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, num_envs: int, length: int) -> None:
        self.num_envs, self._length, self._step = num_envs, length, 0
        self.single_observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._observations = np.zeros((num_envs, 1), dtype=np.float32)
        self._rewards, self._never = np.zeros(num_envs), np.zeros(num_envs, dtype=np.bool_)
        self._frames = tuple(np.zeros((8, 8, 3), dtype=np.uint8) for _ in range(num_envs))

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Zeros."""
        self._step = 0
        return self._observations, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Zeros."""
        self._step = (self._step + 1) % (self._length + 1)
        ends = ~self._never if self._step == self._length else self._never
        return self._observations, self._rewards, self._never, ends, {}

    def render(self) -> tuple[NDArray[np.uint8], ...]:
        """The same black frames at every call."""
        return self._frames
