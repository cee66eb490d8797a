"""Scene changes: fields of a MuJoCo model and its cameras that differ from the renderer's, in memory and in files."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.untrusted import parse_json, read_arrays, reading
from vlmrm_gym._util.validation import is_number, short_repr

if TYPE_CHECKING:
    import mujoco

CAMERA_FIELD = "camera."
"""Begins the names of cameras' fields in scene changes, "camera.0.distance"; other fields are of the model."""
_FRAME = "frame"
"""The captured frame of a change, among the names of its fields."""
DRAWN = (
    *("qpos0", "body_", "jnt_", "geom_", "site_", "cam_", "light_", "flex_", "mesh_", "skin_", "hfield_", "tex_"),
    *("mat_", "tendon_", "wrap_", "actuator_cranklength"),
)
"""Prefixes of all fields that can affect a frame. They include some that do not, such as friction."""
LARGE = ("flex_", "mesh_", "skin_", "hfield_", "tex_")
"""Prefixes of fields that may be too large to compare at every step."""
_READ_OF_CAMERAS = re.compile(rf"{re.escape(CAMERA_FIELD)}\d+\.[a-z]+", re.A)
"""Names of fields of cameras that a file may change."""
_UPLOADED = (*LARGE, "mat_tex", "vis.map", "vis.rgba", "stat.extent", "stat.center")
"""Prefixes of fields that are uploaded to the OpenGL context."""
_RENDERER_SETTINGS = ("vis.quality.", "vis.global_.offwidth", "vis.global_.offheight")
"""Settings that the renderer overrides."""


@dataclass(frozen=True, eq=False)
class SceneChange:
    """The difference between the scene of a state and the scene that the renderer was made for.

    Successive states share unchanged values, so a new texture is stored, and pickled, once.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    """Changed fields of the MuJoCo model and of the cameras, by name: arrays or numbers."""
    frame: NDArray[np.uint8] | None = None
    """The frame itself, uint8 (H, W, 3) of the renderer's size, if the renderer cannot render this scene. Of a renderer
    with several cameras: all of its frames, (V, H, W, 3)."""

    def values(self) -> dict[str, Any]:
        """Return all that has changed, by name; the captured frame is "frame"."""
        return {**self.fields} if self.frame is None else {**self.fields, _FRAME: self.frame}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "SceneChange":
        """Make the change with these `values`."""
        return cls({name: value for name, value in values.items() if name != _FRAME}, values.get(_FRAME))

    def arrays(self) -> list[NDArray[Any]]:
        """Return all arrays of the change."""
        return [value for value in self.values().values() if isinstance(value, np.ndarray)]


@dataclass(frozen=True, eq=False)
class SceneUpdate:
    """The difference of two scene changes of an environment: a texture crosses a pipe once an episode."""

    number: int
    """Changes of the environment's scene before this one. Others than have arrived mean that one was lost."""
    count: int
    """Changes since then: 1, or 0 if the scene is as it was."""
    whole: bool
    """Whether the values are all that differs from the renderer's scene, whatever was before: an episode begins."""
    values: Mapping[str, Any]
    """New values, by name."""
    restored: frozenset[str]
    """Names of what is back at the renderer's values."""

    @classmethod
    def between(cls, number: int, before: SceneChange | None, now: SceneChange | None, *, whole: bool) -> "SceneUpdate":
        """Compute the update from one scene change to the next; None is no change."""
        old, new = ({} if change is None else change.values() for change in (None if whole else before, now))
        values = {name: value for name, value in new.items() if old.get(name) is not value}
        return cls(number, int(before is not now), whole, values, frozenset(old.keys() - new.keys()))

    def apply(self, before: SceneChange | None) -> SceneChange | None:
        """Apply this update to a scene change. The same object if it is as it was."""
        if not self.whole and not self.count:
            return before
        old = {} if before is None or self.whole else before.values()
        values = {name: value for name, value in old.items() if name not in self.restored} | dict(self.values)
        return SceneChange.of(values) if values else None


def pack_changes(changes: Sequence[SceneChange | None]) -> dict[str, NDArray[Any]]:
    """Arrays from which `unpack_changes` makes the scene changes of states. A value that several share is kept once."""
    numbers: dict[int, int] = {}  # of the values, by their identity
    arrays: dict[str, NDArray[Any]] = {}
    table: list[dict[str, int] | None] = []
    for change in changes:
        fields = {} if change is None else change.values()
        row = {name: numbers.setdefault(id(value), len(numbers)) for name, value in fields.items()}
        arrays |= {f"value_{row[name]}": np.asarray(value) for name, value in fields.items()}
        table.append(None if change is None else row)
    return {"table": np.array(json.dumps(table)), **arrays}


def unpack_changes(arrays: Mapping[str, NDArray[Any]]) -> list[SceneChange | None]:
    """Unpack the scene changes that `pack_changes` packed. States share the values that they shared then."""
    values = {name: array if array.ndim else array.item() for name, array in arrays.items()}
    rows = parse_json(str(arrays["table"]))
    return [
        None if row is None else SceneChange.of({name: values[f"value_{number}"] for name, number in row.items()})
        for row in rows
    ]


def save_changes(path: Path, changes: Sequence[SceneChange | None]) -> None:
    """Write the scene changes of states into a file, ending in ".npz". It is not compressed: see `read_arrays`."""
    np.savez(path, **pack_changes(changes))  # pyright: ignore[reportArgumentType]


def load_changes(path: Path) -> list[SceneChange | None]:
    """Read what `save_changes` wrote. An InputError if the file cannot be read, or is damaged."""
    arrays = read_arrays(path)
    with reading(path, LookupError, AttributeError, TypeError):
        return unpack_changes(arrays)


def check_read(changes: Sequence[SceneChange | None]) -> None:
    """Raise a ValueError unless scene changes, read from a file, are numbers of a camera or of what is drawn.

    Fields of integers are refused: MuJoCo takes them for addresses and numbers of meshes and textures, unchecked.
    """
    for change in changes:
        for name, value in {} if change is None else change.fields.items():
            is_number_or_array = value.dtype.kind in "fbu" if isinstance(value, np.ndarray) else is_number(value)
            if not is_number_or_array or not (name in _read_of_models() or _READ_OF_CAMERAS.fullmatch(name)):
                raise ValueError(f"a scene cannot change {short_repr(name)} to {short_repr(value)}")
        if change is not None and change.frame is not None and change.frame.dtype != np.uint8:
            raise ValueError(f"a captured frame must be uint8. Received {change.frame.dtype}")


@cache
def _read_of_models() -> frozenset[str]:
    """Names of fields of models that a file may change: no arrays of integers, no size that memory is allocated for."""
    import mujoco

    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    fields = {name: get_field(model, name) for name in (*field_names(model), "opt.gravity")}
    may_change = (name for name, value in fields.items() if np.ndim(value) == 0 or value.dtype.kind in "fbu")
    return frozenset(may_change) - {"vis.global_.cameraid"}


def same_sizes(model: "mujoco.MjModel", other: "mujoco.MjModel") -> bool:
    """Tell whether two models have equal fields and shapes: one can be rendered as a change of the other."""
    names = field_names(model)
    return names == field_names(other) and all(
        np.shape(get_field(model, name)) == np.shape(get_field(other, name)) for name in names
    )


def field_names(model: "mujoco.MjModel") -> list[str]:
    """List the names of all fields that can affect a frame; nested ones as paths, such as `vis.headlight.ambient`."""
    names = [name for name in dir(model) if name.startswith(DRAWN) and isinstance(getattr(model, name), np.ndarray)]
    nested = [*_numbers_in(model.vis, "vis"), *_numbers_in(model.stat, "stat")]
    if model.ntendon:
        nested.append("opt.gravity")  # slack tendons hang
    return names + [name for name in nested if not name.startswith(_RENDERER_SETTINGS)]


def _numbers_in(structure: Any, path: str) -> Iterator[str]:
    """List the paths of all numbers and arrays in a nested MuJoCo structure."""
    for name in dir(structure):
        value = None if name.startswith("_") else getattr(structure, name)
        if isinstance(value, int | float | np.ndarray):
            yield f"{path}.{name}"
        elif value is not None and not callable(value):
            yield from _numbers_in(value, f"{path}.{name}")


def get_field(owner: Any, name: str) -> Any:
    """Get the value of a field of a model or a camera: a number, or an array that is a view of MuJoCo's memory."""
    return reduce(getattr, name.split("."), owner)


def set_field(owner: Any, name: str, value: Any) -> None:
    """Set a field of a model or a camera; the value is not validated."""
    now = get_field(owner, name)
    if isinstance(now, np.ndarray):
        now[...] = value
    else:
        path, _, last = name.rpartition(".")
        setattr(get_field(owner, path) if path else owner, last, value)


def same_value(value: Any, other: Any) -> bool:
    """Tell whether two values of a field are bitwise equal."""
    if value is other or not isinstance(value, np.ndarray):
        return value is other or value == other
    # Eight bytes at a time is three times as fast for textures, and a NaN equals itself.
    ours, theirs = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (value, other))
    even = len(ours) // 8 * 8
    words = (ours[:even].view(np.uint64) == theirs[:even].view(np.uint64)).all()
    return bool(words) and ours[even:].tobytes() == theirs[even:].tobytes()


def frozen_copy(value: Any) -> Any:
    """Make a read-only copy of a field's value."""
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
    return value


class AppliedChanges:
    """Applies the scene changes of successive states to a renderer's model and cameras, which it writes to."""

    def __init__(self, model: "mujoco.MjModel", cameras: "Sequence[mujoco.MjvCamera]") -> None:
        self._model, self._cameras = model, cameras
        self._applied: SceneChange | None = None
        self._originals: dict[str, Any] = {}

    def apply(self, change: SceneChange | None) -> bool:
        """Replace the previous state's change. Returns whether the OpenGL context must be made again."""
        if change is self._applied:
            return False
        self._applied = change
        fields = {} if change is None else change.fields
        upload = False
        for name in {*self._originals, *fields}:
            owner, path = self._find(name)
            now = get_field(owner, path)
            original = self._originals.setdefault(name, frozen_copy(now))
            wanted = fields.get(name, original)
            if not same_value(now, wanted):
                set_field(owner, path, wanted)
                upload |= name.startswith(_UPLOADED)
        return upload

    def _find(self, name: str) -> tuple[Any, str]:
        """Find the object that has the field, and the field's path in it."""
        if not name.startswith(CAMERA_FIELD):
            return self._model, name
        _, number, path = name.split(".", 2)
        return self._cameras[int(number)], path
