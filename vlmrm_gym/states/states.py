"""Captured states, and the renderer protocols: states in, frames out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.states.scene_changes import SceneChange

Quality = Literal["fast", "faithful"]
QUALITIES: tuple[Quality, ...] = get_args(Quality)
"""How MuJoCo scenes are rendered; see `MuJoCoRenderer`."""


class Renderer(Protocol):
    """Renders states: all that scoring needs of a renderer.

    States can come in any order, any number of times, and from another process. So a frame must depend on its state
    only, and a renderer must be picklable: it creates graphics resources when it first renders, and leaves them out of
    the pickle. A minimal one, whose states are one number, the grey level of the whole frame:

    >>> import numpy as np
    >>> from vlmrm_gym.states import States
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
        """Render states, float64 (B, S), or stored frames, uint8 (B, H, W, 3): uint8 (B, H, W, 3), C-contiguous.

        `changes` says how the scene of each state differs from the renderer's, None: not at all. They have no `frame`:
        `States.draw` handles those. A ValueError if states have another shape, or a NaN or an infinity.
        """
        ...

    def close(self) -> None:
        """Free graphics resources. Rendering again creates them anew."""
        ...


class EnvRenderer(Renderer, Protocol):
    """A renderer made for an environment: it can also read the environment's state."""

    def capture(self, env: gym.Env[Any, Any]) -> NDArray[Any]:
        """Copy the current state of the environment: what determines its frame in this renderer's scene."""
        ...

    def at_size(self, render_size: Callable[[int, int], tuple[int, int]]) -> "EnvRenderer":
        """Make this renderer at another size: `render_size` maps its (height, width), in pixels, to the new one."""
        ...


@dataclass(frozen=True, eq=False)
class States:
    """A batch of B states, in the order in which they are scored. Without clips N is B."""

    rows: NDArray[Any]
    """float64 (N, S), or stored frames, uint8 (N, H, W, 3) or (N, V, H, W, 3)."""
    changes: Sequence[SceneChange | None] | None = None
    """N scene changes; None if no state has one."""
    clips: NDArray[np.int64] | None = None
    """int64 (B, F): the rows of each clip, the state itself last; rows that clips share are drawn once. Or int64 (B,):
    the row whose reward each state has."""

    @classmethod
    def of(cls, rows: NDArray[Any], changes: Sequence[SceneChange | None]) -> "States":
        """Make states of rows, and of a change or None for each."""
        return cls(rows, [*changes] if any(change is not None for change in changes) else None)

    def __len__(self) -> int:
        return len(self.rows if self.clips is None else self.clips)

    def __getitem__(self, index: slice | NDArray[Any]) -> "States":
        """Select the states of a slice, of a bool mask (B,), or of their numbers, int64 (N,)."""
        if self.clips is None:
            return self._rows(index)
        used, clips = np.unique(self.clips[index], return_inverse=True)
        return replace(self._rows(used), clips=clips.reshape(-1, *self.clips.shape[1:]))

    def _rows(self, index: slice | NDArray[Any]) -> "States":
        if self.changes is None:
            return States(self.rows[index])
        chosen = np.arange(len(self.rows))[index]
        return States(self.rows[index], [self.changes[i] for i in chosen])

    @property
    def newest(self) -> "States":
        """The states themselves, without what came before them in their clips."""
        return self if self.clips is None else self._rows(self.clips.reshape(len(self), -1)[:, -1])

    @classmethod
    def concatenate(cls, parts: Sequence["States"]) -> "States":
        """Concatenate batches; all have `clips`, or none."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(len(part.rows) for part in parts[:-1])])
        clips = [start + part.clips for start, part in zip(starts, parts, strict=True) if part.clips is not None]
        changes = [change for part in parts for change in part.changes or [None] * len(part.rows)]
        return cls(
            np.concatenate([part.rows for part in parts]),
            changes if any(part.changes is not None for part in parts) else None,
            np.concatenate(clips) if clips else None,
        )

    @property
    def nbytes(self) -> int:
        """Memory in bytes; arrays that scene changes share count once."""
        distinct = {id(change): change for change in self.changes or () if change is not None}
        arrays = {id(array): array for change in distinct.values() for array in change.arrays()}
        rows_and_clips = [array for array in (self.rows, self.clips) if array is not None]
        return sum(array.nbytes for array in (*rows_and_clips, *arrays.values()))

    def draw(self, renderer: Renderer) -> NDArray[np.uint8]:
        """Render the rows, but for captured frames: uint8 (N, H, W, 3), of several cameras (N, V, H, W, 3)."""
        captured = [None if change is None else change.frame for change in self.changes or ()]
        is_captured = np.array([frame is not None for frame in captured])
        if not is_captured.any():
            return renderer.render(self.rows, self.changes)
        stored = np.stack([frame for frame in captured if frame is not None])
        if is_captured.all():
            return stored
        others = self._rows(~is_captured)
        frames = np.empty((len(self.rows), *stored.shape[1:]), dtype=np.uint8)
        frames[is_captured], frames[~is_captured] = stored, renderer.render(others.rows, others.changes)
        return frames


class StateList:
    """Collects successive states of one environment."""

    def __init__(self) -> None:
        self._rows, self._like = bytearray(), np.empty(0)
        self._changes: list[SceneChange | None] = []
        self.nbytes = 0
        """Memory in bytes; arrays that successive scene changes share count once."""

    def append(self, row: NDArray[Any], change: SceneChange | None) -> None:
        """Add a copy of a state, and its scene change. All states are of one shape and dtype."""
        before = self._changes[-1] if self._changes else None
        self._like = row
        self._rows += row.tobytes()
        self._changes.append(change)
        self.nbytes += row.nbytes
        if change is not None and change is not before:
            shared = set() if before is None else {id(array) for array in before.arrays()}
            self.nbytes += sum(array.nbytes for array in change.arrays() if id(array) not in shared)

    def states(self) -> States:
        """The states, at least one. They own the memory: nothing can be added any more."""
        rows = np.frombuffer(self._rows, self._like.dtype).reshape(-1, *self._like.shape)
        return States.of(rows, self._changes)


def check_states(states: ArrayLike, size: int) -> NDArray[np.float64]:
    """Check states, and return them as float64 (B, size); a ValueError for another shape, a NaN or an infinity."""
    checked = np.asarray(states, dtype=np.float64)
    if checked.ndim != 2 or checked.shape[1] != size:
        raise ValueError(f"`states` must have the shape (B, {size}). Received {checked.shape}.")
    if not np.isfinite(checked).all():
        bad = int(np.flatnonzero(~np.isfinite(checked).all(1))[0])
        raise ValueError(f"`states` must be finite. Received {checked[bad]} as state {bad}.")
    return checked


def side_by_side(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Join the views of each state: uint8 (B, V, H, W, 3) to (B, H, V * W, 3); (B, H, W, 3) unchanged."""
    return frames if frames.ndim == 4 else np.concatenate(list(frames.swapaxes(0, 1)), axis=2)
