"""Detects changes that an environment makes to its MuJoCo model: bodies, sizes, colours, lights, cameras, textures."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

from vlmrm_gym.rendering.scene_changes import DRAWN, LARGE, SceneChange, field_names, frozen_copy, get_field, same_value

_MAX_GAP = 4096
"""Fields with at most this many bytes between them are compared as one block of memory."""
_SAMPLE = 256
"""Number of elements of a large field that are compared at every step."""


class ModelWatch:
    """Finds the fields in which an environment's model differs from the renderer's.

    Small fields are compared at every call, as blocks of memory (microseconds). Textures, meshes and height fields are
    compared completely after resets, and otherwise by a sample of their elements.

    Args:
        model: The environment's model.
        drawn: The renderer's model, of the same sizes; see `same_sizes`.
    """

    def __init__(self, model: mujoco.MjModel, drawn: mujoco.MjModel) -> None:
        self.model, self._drawn = model, drawn
        self._names = field_names(model)
        self._large = _large_arrays(model)
        self._memory = small_memory(model)
        # At random, because a regular step would see a single column of many textures.
        rng = np.random.default_rng(0)
        self._samples = [(array, rng.integers(len(array), size=_SAMPLE)) for array in self._large.values()]
        self._last_memory: list[bytes] | None = None
        self._last_samples: list[bytes] | None = None
        self._digests: list[bytes] = []
        self._change: SceneChange | None = None

    def change(self, *, after_reset: bool) -> SceneChange | None:
        """The difference now; None without one. Returns the same object until something changes."""
        memory = [part.tobytes() for part in self._memory]
        samples = [array.take(indices).tobytes() for array, indices in self._samples]
        large = (after_reset and self._large_changed()) or samples != self._last_samples
        if large or memory != self._last_memory:
            self._last_memory, self._last_samples, self._change = memory, samples, self._compare(large=large)
        return self._change

    def _large_changed(self) -> bool:
        digests = [xxh3_128_digest(array.view(np.uint8).data) for array in self._large.values()]
        changed, self._digests = digests != self._digests, digests
        return changed

    def _compare(self, *, large: bool) -> SceneChange | None:
        """Compare field by field; the large fields only if `large`."""
        before = {} if self._change is None else self._change.fields
        fields = {} if large else {name: before[name] for name in self._large if name in before}
        for name in self._names if large else (name for name in self._names if name not in self._large):
            value = get_field(self.model, name)
            if not same_value(value, get_field(self._drawn, name)):
                known = name in before and same_value(value, before[name])
                fields[name] = before[name] if known else frozen_copy(value)
        return SceneChange(fields) if fields else None


def _large_arrays(model: mujoco.MjModel) -> dict[str, NDArray[Any]]:
    """The fields that are too large to be compared at every step, by name, flat."""
    names = (name for name in field_names(model) if name.startswith(LARGE))
    return {name: array for name in names if (array := getattr(model, name).reshape(-1)).nbytes > _MAX_GAP}


def small_memory(model: mujoco.MjModel) -> list[NDArray[np.uint8]]:
    """The memory of all other fields that can affect a frame, as few blocks, which do not keep the model alive.

    MuJoCo allocates the arrays of a model side by side, and keeps visual settings and statistics in the struct itself.
    """
    large = {_address(array) for array in _large_arrays(model).values()}
    arrays = [getattr(model, name) for name in dir(model) if name.startswith(DRAWN)]
    arrays = [array for array in arrays if isinstance(array, np.ndarray) and array.nbytes]
    blocks: list[tuple[int, int]] = []
    for start, nbytes in sorted((_address(array), array.nbytes) for array in arrays):
        if start in large:
            continue
        if blocks and 0 <= start - blocks[-1][1] <= _MAX_GAP:
            blocks[-1] = (blocks[-1][0], start + nbytes)
        else:
            blocks.append((start, start + nbytes))
    struct = model._address
    blocks.append((struct, _address(model.stat.center) + model.stat.center.nbytes))
    return [_memory(start, end - start) for start, end in blocks]


def data_memory(data: mujoco.MjData) -> NDArray[np.uint8]:
    """The memory of what the next step and observations read, which does not keep the data alive."""
    # MuJoCo allocates the arrays of fixed size as one block; these are its first and its last.
    start = _address(data.qpos)
    return _memory(start, _address(data.cfrc_ext) + data.cfrc_ext.nbytes - start)


@contextmanager
def restored(blocks: Sequence[NDArray[np.uint8]]) -> Iterator[None]:
    """Put memory back as it was, whatever is written to it in between."""
    before = [block.copy() for block in blocks]
    try:
        yield
    finally:
        for block, kept in zip(blocks, before, strict=True):
            block[:] = kept


def _memory(address: int, nbytes: int) -> NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def _address(array: NDArray[Any]) -> int:
    return array.__array_interface__["data"][0]
