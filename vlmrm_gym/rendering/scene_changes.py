"""How scenes of states differ from the scene that a renderer was made for; in memory, between processes, in files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.untrusted import parse_json, read_arrays, reading

CAMERA_FIELD = "camera."
"""Prefix of the fields of a renderer's cameras in scene changes; other fields are of the model."""
_FRAME = "frame"
"""The captured frame of a change, among the names of its fields in a file."""


def camera_field(number: int, name: str) -> str:
    """The name that a camera's field has in scene changes."""
    return f"{CAMERA_FIELD}{number}.{name}"


@dataclass(frozen=True, eq=False)
class SceneChange:
    """How the scene of a state differs from the scene that the renderer was made for.

    Successive states share unchanged values, so a new texture is stored, and pickled, once.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    """Changed fields of the MuJoCo model and of the cameras, by name: arrays or numbers."""
    frame: NDArray[np.uint8] | None = None
    """The frame itself, uint8 (H, W, 3) of the renderer's size, if the renderer cannot render this scene. Of a renderer
    with several cameras: all of its frames, (V, H, W, 3)."""

    def arrays(self) -> Iterator[NDArray[Any]]:
        """All arrays of the change."""
        yield from (value for value in self.fields.values() if isinstance(value, np.ndarray))
        if self.frame is not None:
            yield self.frame


@dataclass(frozen=True, eq=False)
class SceneUpdate:
    """The difference between the scene changes of an environment's previous and newest state.

    Environments in other processes send updates instead of whole changes: a new texture crosses the pipe once.
    """

    number: int
    """Number of the update in its environment, from 0. A gap means that an update was lost."""
    fields: Mapping[str, Any]
    """New values."""
    restored: frozenset[str]
    """Fields that are back at the renderer's values."""
    frame: NDArray[np.uint8] | None

    @classmethod
    def between(cls, number: int, before: SceneChange | None, now: SceneChange | None) -> "SceneUpdate":
        """The update from one scene change to the next; None is no change."""
        old, new = before or SceneChange(), now or SceneChange()
        fields = {name: value for name, value in new.fields.items() if old.fields.get(name) is not value}
        return cls(number, fields, frozenset(old.fields) - frozenset(new.fields), new.frame)

    def apply(self, before: SceneChange | None) -> SceneChange | None:
        """The scene change after this update."""
        kept = {name: value for name, value in (before or SceneChange()).fields.items() if name not in self.restored}
        fields = kept | dict(self.fields)
        return SceneChange(fields, self.frame) if fields or self.frame is not None else None


def pack_changes(changes: Sequence[SceneChange | None]) -> dict[str, NDArray[Any]]:
    """Arrays from which `unpack_changes` makes the scene changes of states. A value that several share is kept once."""
    numbers: dict[int, int] = {}  # of the values, by their identity
    arrays: dict[str, NDArray[Any]] = {}
    table: list[dict[str, int] | None] = []
    for change in changes:
        fields = {} if change is None else dict(change.fields)
        if change is not None and change.frame is not None:
            fields[_FRAME] = change.frame
        row = {name: numbers.setdefault(id(value), len(numbers)) for name, value in fields.items()}
        arrays |= {f"value_{row[name]}": np.asarray(value) for name, value in fields.items()}
        table.append(None if change is None else row)
    return {"table": np.array(json.dumps(table)), **arrays}


def unpack_changes(arrays: Mapping[str, NDArray[Any]]) -> list[SceneChange | None]:
    """The scene changes that `pack_changes` packed. States share the values that they shared then.

    Raises:
        ValueError, KeyError: The arrays are of something else.
    """
    values = {name: array if array.ndim else array.item() for name, array in arrays.items()}
    made: list[SceneChange | None] = []
    for fields in parse_json(str(arrays["table"])):
        if fields is None:
            made.append(None)
            continue
        found = {name: values[f"value_{number}"] for name, number in fields.items()}
        made.append(SceneChange(frame=found.pop(_FRAME, None), fields=found))
    return made


def save_changes(path: Path, changes: Sequence[SceneChange | None]) -> None:
    """Write the scene changes of states into a file, ending in ".npz". It is not compressed: see `read_arrays`.

    Raises:
        OSError: The file could not be written.
    """
    np.savez(path, **pack_changes(changes))  # pyright: ignore[reportArgumentType]


def load_changes(path: Path) -> list[SceneChange | None]:
    """Read what `save_changes` wrote.

    Raises:
        InputError: The file cannot be read, or is damaged.
    """
    arrays = read_arrays(path)
    with reading(path, LookupError, AttributeError, TypeError):
        return unpack_changes(arrays)
