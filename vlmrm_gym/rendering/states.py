"""Captured states: rows of numbers, and how the scene of each differs from the renderer's."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rendering.renderer import Renderer
from vlmrm_gym.rendering.scene_changes import SceneChange


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

    def __len__(self) -> int:
        return len(self.rows if self.clips is None else self.clips)

    def __getitem__(self, index: slice | NDArray[Any]) -> "States":
        """The states of a slice, of a bool mask (B,), or of their numbers, int64 (N,)."""
        if self.clips is None:
            return self._rows(index)
        used, clips = np.unique(self.clips[index], return_inverse=True)
        return replace(self._rows(used), clips=clips.reshape(-1, *self.clips.shape[1:]))

    def _rows(self, index: slice | NDArray[Any]) -> "States":
        """Some rows, without clips."""
        if self.changes is None:
            return States(self.rows[index])
        chosen = np.arange(len(self.rows))[index]
        return States(self.rows[index], [self.changes[i] for i in chosen])

    @property
    def newest(self) -> "States":
        """The states themselves, without what came before them in their clips."""
        return self if self.clips is None else self._rows(self.clips.reshape(len(self), -1)[:, -1])

    def gather(self, frames: NDArray[np.uint8], index: slice) -> NDArray[np.uint8]:
        """The frames of some states, (B, ...), or their clips, (B, F, ...), from the frames of all rows, (N, ...)."""
        return frames[index if self.clips is None else self.clips[index]]

    @classmethod
    def concatenate(cls, parts: Sequence["States"]) -> "States":
        """Concatenate batches; all have `clips`, or none.

        Raises:
            ValueError: Rows have different shapes.
        """
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
        own = [array for array in (self.rows, self.clips) if array is not None]
        return sum(array.nbytes for array in (*own, *arrays.values()))

    def draw(self, renderer: Renderer) -> NDArray[np.uint8]:
        """Render the rows. Captured frames are used as they are.

        Returns:
            uint8 (N, H, W, 3), C-contiguous. (N, V, H, W, 3) if the renderer has several cameras.

        Raises:
            ValueError: Rows do not fit the renderer, or contain a NaN or an infinity.
        """
        changes = self.changes or ()
        given = [change.frame for change in changes if change is not None and change.frame is not None]
        if not given:
            return renderer.render(self.rows, self.changes)
        given = np.stack(given)
        captured = np.array([change is not None and change.frame is not None for change in changes])
        frames = np.empty((len(self.rows), *given.shape[1:]), dtype=np.uint8)
        frames[captured] = given
        if not captured.all():
            others = self._rows(~captured)
            frames[~captured] = renderer.render(others.rows, others.changes)
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
        return States(rows, self._changes if any(change is not None for change in self._changes) else None)
