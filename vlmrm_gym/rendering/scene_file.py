"""Scene changes of an episode's states as arrays, and in a file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rendering.scene_changes import SceneChange

_FRAME = "frame"
"""The captured frame of a change, among the names of its fields."""


def pack_changes(changes: Sequence[SceneChange | None]) -> dict[str, NDArray[Any]]:
    """Arrays from which `unpack_changes` makes the scene changes of states. A value that several share is kept once."""
    numbers: dict[int, int] = {}
    values: list[Any] = []

    def number_of(value: Any) -> int:
        if id(value) not in numbers:
            numbers[id(value)] = len(values)
            values.append(value)
        return numbers[id(value)]

    table = []
    for change in changes:
        own = None if change is None else {name: number_of(value) for name, value in change.fields.items()}
        if own is not None and change is not None and change.frame is not None:
            own[_FRAME] = number_of(change.frame)
        table.append(own)
    return {"table": np.array(json.dumps(table)), **{f"value_{i}": np.asarray(value) for i, value in enumerate(values)}}


def unpack_changes(arrays: Mapping[str, NDArray[Any]]) -> list[SceneChange | None]:
    """The scene changes that `pack_changes` packed. States share the values that they shared then.

    Raises:
        ValueError, KeyError: The arrays are of something else.
    """
    values = {name: array if array.ndim else array.item() for name, array in arrays.items()}
    made: list[SceneChange | None] = []
    for fields in json.loads(str(arrays["table"])):
        if fields is None:
            made.append(None)
            continue
        found = {name: values[f"value_{number}"] for name, number in fields.items()}
        made.append(SceneChange(frame=found.pop(_FRAME, None), fields=found))
    return made


def save_changes(path: Path, changes: Sequence[SceneChange | None]) -> None:
    """Write the scene changes of states into a file, ending in ".npz".

    Raises:
        OSError: The file could not be written.
    """
    np.savez_compressed(path, **pack_changes(changes))  # pyright: ignore[reportArgumentType]


def load_changes(path: Path) -> list[SceneChange | None]:
    """Read what `save_changes` wrote.

    Raises:
        OSError, ValueError, KeyError: The file cannot be read, or is damaged.
    """
    with np.load(path, allow_pickle=False) as file:
        return unpack_changes(dict(file.items()))
