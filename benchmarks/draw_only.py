"""What `benchmarks/fps.py` gives the scoring workers instead of the real thing, to time one stage without the others.

Workers import this module; it has to be a file beside the benchmark.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.rendering import Renderer
from vlmrm_gym.rewards import CLIPReward

SizeToDraw = Callable[[int, int], tuple[int, int]]


class DrawOnly:
    """A reward model that looks at nothing but the shape of the frames; all rewards are 0.

    Args:
        size_to_draw: Of the model that it stands for.
        batch_size: Of the model that it stands for.
        ignored: What `CLIPReward` takes.
        also_ignored: What `CLIPReward` takes.
    """

    def __init__(self, size_to_draw: SizeToDraw, batch_size: int, *ignored: object, **also_ignored: object) -> None:
        self.size_to_draw, self.batch_size = size_to_draw, batch_size

    def __call__(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Frames, uint8 (B, H, W, 3), to zeros, float32 (B,)."""
        return np.zeros(len(frames), dtype=np.float32)


class ReadyFrames:
    """Draws one state once; from then on that frame is what every state looks like, without being drawn.

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


class DrawnAtHeight(CLIPReward):
    """A `CLIPReward` that asks for drawings of another height than its model does.

    Args:
        height: In pixels; the shape stays the environment's.
        model: See `CLIPReward`.
        options: See `CLIPReward`.
    """

    def __init__(self, height: int, model: str = "tiny", **options: Any) -> None:
        super().__init__(model, **options)
        self._height = height

    @property
    def size_to_draw(self) -> SizeToDraw:
        """From (height, width) of what an environment shows to how large to draw it."""
        return _Height(self._height)


@dataclass(frozen=True)
class _Height:
    pixels: int

    def __call__(self, height: int, width: int) -> tuple[int, int]:
        return self.pixels, max(1, round(width * self.pixels / height))
