"""What every renderer does: states in, frames out."""

from typing import Any, Literal, Protocol, get_args

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

Quality = Literal["fast", "faithful"]
QUALITIES: tuple[Quality, ...] = get_args(Quality)
"""How MuJoCo scenes are drawn; see `MuJoCoRenderer`."""


class Renderer(Protocol):
    """Draws an environment's states, in any order, any number of times, wherever they were recorded.

    A renderer can be pickled, without what it holds of a graphics system: states can be drawn in another process.
    """

    def capture(self, env: gym.Env[Any, Any]) -> NDArray[Any]:
        """What determines the frame that the environment shows now; a copy."""
        ...

    def render(self, states: ArrayLike) -> NDArray[np.uint8]:
        """Draw states (B, ...), stacked as they were captured: uint8 (B, H, W, 3), C-contiguous.

        Raises:
            ValueError: States of another shape, or with a NaN or an infinity.
        """
        ...

    def close(self) -> None:
        """Let go of the graphics system; drawing again takes it up again."""
        ...


def check_states(states: ArrayLike, size: int) -> NDArray[np.float64]:
    """States as float64 (B, size).

    Raises:
        ValueError: They have another shape, or are not finite.
    """
    checked = np.asarray(states, dtype=np.float64)
    if checked.ndim != 2 or checked.shape[1] != size:
        raise ValueError(f"`states` must have the shape (B, {size}). Received {checked.shape}.")
    if not np.isfinite(checked).all():
        bad = int(np.flatnonzero(~np.isfinite(checked).all(1))[0])
        raise ValueError(f"`states` must be finite. Received {checked[bad]} as state {bad}.")
    return checked
