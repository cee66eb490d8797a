"""Stand-ins for `benchmarks/fps.py`: what it gives the scoring workers, to time one stage without the others.

A file of its own, because the workers import it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

import vlmrm_gym  # its CLIPReward is looked up where it is used: drawing needs no torch
from vlmrm_gym.rendering import Renderer

SizeToDraw = Callable[[int, int], tuple[int, int]]


class DrawOnly:
    """A reward model that does not look at the frames: all rewards are 0.

    Args:
        size_to_draw: That of the model that it stands for.
        frames_at_once: The `batch_size` of the model that it stands for.
        ignored: What `CLIPReward` takes.
        also_ignored: What `CLIPReward` takes.
    """

    def __init__(self, size_to_draw: SizeToDraw, frames_at_once: int, *ignored: object, **also_ignored: object) -> None:
        self.size_to_draw, self.batch_size = size_to_draw, frames_at_once
        self.slice_size = frames_at_once

    def __call__(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Frames, uint8 (B, H, W, 3), to zeros, float32 (B,)."""
        return np.zeros(len(frames), dtype=np.float32)


class ReadyFrames:
    """Draws one state, once; every state is then said to look like that, and nothing is drawn.

    Args:
        renderer: What draws it.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._frames = np.empty((0, 0, 0, 3), dtype=np.uint8)

    def capture(self, env: gym.Env[Any, Any]) -> NDArray[Any]:
        """The state of an environment."""
        return self._renderer.capture(env)

    def render(self, states: ArrayLike) -> NDArray[np.uint8]:
        """A frame for each of the states (B, ...): uint8 (B, H, W, 3)."""
        states = np.asarray(states)
        if len(self._frames) < len(states):
            self._frames = np.repeat(self._renderer.render(states[:1]), len(states), axis=0)
        return self._frames[: len(states)]

    def close(self) -> None:
        """Let go of what drew."""
        self._renderer.close()


class DrawnAtHeight:
    """A `CLIPReward` that asks for drawings of another size than its model does.

    Args:
        height: In pixels; the width follows, so that the shape stays the environment's.
        model: See `CLIPReward`.
        options: See `CLIPReward`.
    """

    def __init__(self, height: int, model: str = "tiny", **options: Any) -> None:
        self.size_to_draw = _Height(height)
        self._score = vlmrm_gym.CLIPReward(model, **options)
        self.model, self.batch_size = self._score.model, self._score.batch_size
        self.slice_size = self._score.slice_size

    def __call__(self, frames: Any) -> Any:
        """Frames, uint8 (B, H, W, 3), to rewards, float32 (B,)."""
        return self._score(frames)


@dataclass(frozen=True)
class _Height:
    pixels: int

    def __call__(self, height: int, width: int) -> tuple[int, int]:
        return self.pixels, max(1, round(width * self.pixels / height))
