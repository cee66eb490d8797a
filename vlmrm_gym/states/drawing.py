"""Frames that are stored as states, and states that are drawn again: at another size, or from another camera."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.states.scene_changes import CAMERA_FIELD, SceneChange
from vlmrm_gym.states.states import Renderer, States


class FrameStore:
    """Keeps the frames that an environment renders: a state is a frame, uint8 (H, W, 3)."""

    def capture(self, env: gym.Env[Any, Any]) -> NDArray[np.uint8]:
        """Copy the environment's current frame."""
        return check_frame(env.render()).copy()

    def render(self, states: ArrayLike, changes: Sequence[SceneChange | None] | None = None) -> NDArray[np.uint8]:
        """Return the frames themselves; see `Renderer.render`. `changes` is ignored: a stored frame has no scene."""
        frames = np.asarray(states)
        if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8:
            raise ValueError(f"`states` must be uint8 (B, H, W, 3). Received {frames.dtype} {frames.shape}.")
        return frames

    def at_size(self, render_size: Callable[[int, int], tuple[int, int]]) -> "FrameStore":
        """Return this renderer: frames are stored at the environment's own size."""
        return self

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def check_frame(rendered: object) -> NDArray[np.uint8]:
    """Check the result of `render()`, and return it as an array; a ValueError unless it is uint8 (H, W, 3)."""
    frame = np.asarray(rendered)
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        hint = " Scale to 0..255 and convert." if frame.dtype.kind == "f" else ""
        raise ValueError(f"`render()` must return uint8 (H, W, 3). Received {frame.dtype} {frame.shape}.{hint}")
    return frame


Size = tuple[int, int]
"""(height, width), in pixels."""


def resize(frames: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    """Resize frames, uint8 (..., H, W, 3): each pixel the mean of its area; interpolated if they are larger."""
    if frames.shape[-3:-1] == size:
        return frames
    from PIL import Image  # not needed for what is drawn from states

    (height, width), is_larger = size, size[0] > frames.shape[-3] or size[1] > frames.shape[-2]
    kind = Image.Resampling.BICUBIC if is_larger else Image.Resampling.BOX
    scaled = [Image.fromarray(one).resize((width, height), kind) for one in frames.reshape(-1, *frames.shape[-3:])]
    return np.stack([np.asarray(one) for one in scaled]).reshape(*frames.shape[:-3], *size, 3)


class Drawings:
    """Draws states at other sizes, and from other cameras, than the renderer of a model does."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer: Any = renderer
        self._wanted: tuple[Size | None, str] = None, repr(None)
        self._other: Any = None
        """The renderer of the last wanted size and cameras; None: the model's."""

    def draw(self, states: States, size: Size | None = None, camera: Any = None) -> NDArray[np.uint8]:
        """Draw B states from every camera: uint8 (B, V, height, width, 3).

        Without a size it is the renderer's, or that of stored frames, which are scaled to any other. `camera` is for
        MuJoCo environments only, see `make_cameras`; named sets turn the renderer's first camera.
        """
        changes = states.changes
        if camera is not None:
            stored = any(change is not None and change.frame is not None for change in changes or ())
            if stored or not hasattr(self._renderer, "from_cameras"):
                raise ValueError(
                    f"`camera` is for MuJoCo environments that are drawn from their states. Received {camera!r} for "
                    "frames that are stored, or of an environment with one view. Leave it out."
                )
        if changes is not None:
            adapted = {id(change): _adapt(change, size, other_camera=camera is not None) for change in changes}
            changes = [adapted[id(change)] for change in changes]
        frames = States(states.rows, changes).draw(self._find_renderer(size, camera))
        frames = frames if frames.ndim == 5 else frames[:, None]
        return frames if size is None else resize(frames, size)

    def close(self) -> None:
        """Free the graphics resources."""
        if self._other is not None:
            self._other.close()

    def _find_renderer(self, size: Size | None, camera: Any) -> Renderer:
        if (wanted := (size, repr(camera))) != self._wanted:
            other: Any = None
            if not isinstance(self._renderer, FrameStore) and wanted != (None, repr(None)):
                other = self._renderer if camera is None else self._renderer.from_cameras(camera)
                other = other.at_size(lambda *own: size or own)
            self.close()
            self._wanted, self._other = wanted, other  # last: a camera that does not exist raises every time
        return self._other or self._renderer


def _adapt(change: SceneChange | None, size: Size | None, *, other_camera: bool) -> SceneChange | None:
    """The change of a scene that is drawn in another size, or from another camera than the environment's."""
    if change is None or (size is None and not other_camera):
        return change
    fields = change.fields.items()
    remaining = {name: value for name, value in fields if not (other_camera and name.startswith(CAMERA_FIELD))}
    return SceneChange(remaining, change.frame if change.frame is None or size is None else resize(change.frame, size))
