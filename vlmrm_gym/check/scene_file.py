"""Scene changes of an episode's states, in a file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vlmrm_gym.rendering.states import SceneChange


def save_changes(path: Path, changes: Sequence[SceneChange | None]) -> None:
    """Write the changed fields of states. A value that several states share is written once.

    Args:
        path: The file, ending in ".npz".
        changes: How the scene of each state differs from the renderer's, without frames.

    Raises:
        OSError: The file could not be written.
    """
    numbers: dict[int, int] = {}
    values: list[Any] = []

    def number_of(value: Any) -> int:
        if id(value) not in numbers:
            numbers[id(value)] = len(values)
            values.append(value)
        return numbers[id(value)]

    table = [
        None if change is None else {name: number_of(value) for name, value in change.fields.items()}
        for change in changes
    ]
    arrays: Mapping[str, Any] = {f"value_{number}": value for number, value in enumerate(values)}
    np.savez_compressed(path, table=json.dumps(table), **arrays)


def load_changes(path: Path) -> list[SceneChange | None]:
    """Read what `save_changes` wrote. States share the values that they shared then.

    Raises:
        OSError, ValueError, KeyError: The file cannot be read, or is damaged.
    """
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file.items())
    table = json.loads(str(arrays.pop("table")))
    values = {name: array if array.ndim else array.item() for name, array in arrays.items()}
    return [
        None if fields is None else SceneChange({name: values[f"value_{number}"] for name, number in fields.items()})
        for fields in table
    ]
