"""The renderer protocols: states in, frames out."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.rendering.scene_changes import SceneChange

Quality = Literal["fast", "faithful"]
QUALITIES: tuple[Quality, ...] = get_args(Quality)
"""How MuJoCo scenes are rendered; see `MuJoCoRenderer`."""


class Renderer(Protocol):
    """Renders states: all that scoring needs of a renderer.

    States can come in any order, any number of times, and from another process. So a frame must depend on its state
    only, and a renderer must be picklable: it creates graphics resources when it first renders, and leaves them out of
    the pickle. A minimal one, whose states are one number, the grey level of the whole frame:

    >>> import numpy as np
    >>> from vlmrm_gym.rendering import States
    >>> class GreyRenderer:
    ...     def render(self, states, changes=None):
    ...         frames = np.empty((len(states), 4, 6, 3), dtype=np.uint8)
    ...         frames[:] = np.asarray(states)[:, :, None, None]
    ...         return frames
    ...
    ...     def close(self):
    ...         pass
    >>> States(np.array([[0.0], [255.0]])).draw(GreyRenderer())[:, 0, 0].tolist()
    [[0, 0, 0], [255, 255, 255]]

    A renderer that may have several cameras also has their number, `num_views`: the frames of V are uint8
    (B, V, H, W, 3).
    """

    def render(self, states: ArrayLike, changes: Sequence[SceneChange | None] | None = None) -> NDArray[np.uint8]:
        """Render a batch of states.

        Args:
            states: float64 (B, S), or stored frames, uint8 (B, H, W, 3).
            changes: B scene changes, each how the scene of a state differs from the renderer's, or None. They have no
                `frame`: `States.draw` handles those.

        Returns:
            uint8 (B, H, W, 3), C-contiguous.

        Raises:
            ValueError: States have another shape, or contain a NaN or an infinity.
        """
        ...

    def close(self) -> None:
        """Free graphics resources. Rendering again creates them anew."""
        ...


class EnvRenderer(Renderer, Protocol):
    """A renderer made for an environment: it can also read the environment's state."""

    def capture(self, env: gym.Env[Any, Any]) -> NDArray[Any]:
        """The current state of the environment, a copy: what determines its frame in this renderer's scene."""
        ...

    def at_size(self, render_size: Callable[[int, int], tuple[int, int]]) -> "EnvRenderer":
        """This renderer at another size: `render_size` maps its (height, width), in pixels, to the new one."""
        ...

    def is_equivalent(self, other: "Renderer") -> bool:
        """Whether this renderer, given scene changes, renders the same frames as another one."""
        ...


@runtime_checkable
class StateRenderer(EnvRenderer, Protocol):
    """A renderer whose states are rows of numbers, not stored frames, and whose frames have a size of its own."""

    height: int
    """Height of the frames, in pixels."""
    width: int
    """Width of the frames, in pixels."""

    @property
    def state_size(self) -> int:
        """Number of values in a state."""
        ...


def check_states(states: ArrayLike, size: int) -> NDArray[np.float64]:
    """Convert states to float64 (B, size).

    Raises:
        ValueError: States have another shape, or are not finite.
    """
    checked = np.asarray(states, dtype=np.float64)
    if checked.ndim != 2 or checked.shape[1] != size:
        raise ValueError(f"`states` must have the shape (B, {size}). Received {checked.shape}.")
    if not np.isfinite(checked).all():
        bad = int(np.flatnonzero(~np.isfinite(checked).all(1))[0])
        raise ValueError(f"`states` must be finite. Received {checked[bad]} as state {bad}.")
    return checked


def side_by_side(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The views of each state in one picture: uint8 (B, V, H, W, 3) to (B, H, V * W, 3); (B, H, W, 3) unchanged."""
    return frames if frames.ndim == 4 else np.concatenate(list(frames.swapaxes(0, 1)), axis=2)
