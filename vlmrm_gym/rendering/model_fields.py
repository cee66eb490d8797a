"""The fields of a MuJoCo model that can affect a frame: which they are, and scene changes applied to them."""

import re
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import mujoco
import numpy as np

from vlmrm_gym.rendering.scene_changes import CAMERA_FIELD, SceneChange
from vlmrm_gym.validation import is_number, short_repr

DRAWN = (
    *("qpos0", "body_", "jnt_", "geom_", "site_", "cam_", "light_", "flex_", "mesh_", "skin_", "hfield_", "tex_"),
    *("mat_", "tendon_", "wrap_", "actuator_cranklength"),
)
"""Prefixes of all fields that can affect a frame. They include some that do not, such as friction."""
LARGE = ("flex_", "mesh_", "skin_", "hfield_", "tex_")
"""Prefixes of fields that may be too large to compare at every step."""
_READ = re.compile(
    rf"{re.escape(CAMERA_FIELD)}\d+\.[a-z]+|({'|'.join(DRAWN)})\w*|(vis|stat)(\.\w+){{1,2}}|opt\.gravity", re.A
)
"""Names of fields that a file may change."""
_UPLOADED = (*LARGE, "mat_tex", "vis.map", "vis.rgba", "stat.extent", "stat.center")
"""Prefixes of fields that are uploaded to the OpenGL context."""
_RENDERER_SETTINGS = ("vis.quality.", "vis.global_.offwidth", "vis.global_.offheight")
"""Settings that the renderer overrides."""


def same_sizes(model: mujoco.MjModel, other: mujoco.MjModel) -> bool:
    """Whether two models have the same fields with the same shapes: one can be rendered as a change of the other."""
    names = field_names(model)
    return names == field_names(other) and all(
        np.shape(get_field(model, name)) == np.shape(get_field(other, name)) for name in names
    )


def field_names(model: mujoco.MjModel) -> list[str]:
    """Names of all fields that can affect a frame; nested ones as paths, such as `vis.headlight.ambient`."""
    names = [name for name in dir(model) if name.startswith(DRAWN) and isinstance(getattr(model, name), np.ndarray)]
    nested = [*_numbers_in(model.vis, "vis"), *_numbers_in(model.stat, "stat")]
    if model.ntendon:
        nested.append("opt.gravity")  # slack tendons hang
    return names + [name for name in nested if not name.startswith(_RENDERER_SETTINGS)]


def _numbers_in(structure: Any, path: str) -> Iterator[str]:
    """Paths of all numbers and arrays in a nested MuJoCo structure."""
    for name in dir(structure):
        value = None if name.startswith("_") else getattr(structure, name)
        if isinstance(value, int | float | np.ndarray):
            yield f"{path}.{name}"
        elif value is not None and not callable(value):
            yield from _numbers_in(value, f"{path}.{name}")


def check_read(changes: Sequence[SceneChange | None]) -> None:
    """Raise a ValueError unless scene changes, read from a file, are numbers of a camera or of what is drawn.

    Arrays of integers are refused: MuJoCo takes them for addresses and numbers of meshes and textures, unchecked.
    """
    for change in changes:
        for name, value in {} if change is None else change.fields.items():
            is_safe = value.dtype.kind in "fbu" if isinstance(value, np.ndarray) else is_number(value)
            if not is_safe or not _READ.fullmatch(name):
                raise ValueError(f"a scene cannot change {short_repr(name)} to {short_repr(value)}")
        if change is not None and change.frame is not None and change.frame.dtype != np.uint8:
            raise ValueError(f"a captured frame must be uint8. Received {change.frame.dtype}")


def get_field(owner: Any, name: str) -> Any:
    """The value of a field of a model or a camera: a number, or an array that is a view of MuJoCo's memory."""
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
    """Whether two values of a field are bitwise equal."""
    if value is other or not isinstance(value, np.ndarray):
        return value is other or value == other
    # Eight bytes at a time is three times as fast for textures, and a NaN equals itself.
    ours, theirs = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (value, other))
    even = len(ours) // 8 * 8
    words = (ours[:even].view(np.uint64) == theirs[:even].view(np.uint64)).all()
    return bool(words) and ours[even:].tobytes() == theirs[even:].tobytes()


def frozen_copy(value: Any) -> Any:
    """A read-only copy of a field's value."""
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
    return value


class AppliedChanges:
    """Applies the scene changes of successive states to a renderer's model and cameras, which it writes to."""

    def __init__(self, model: mujoco.MjModel, cameras: Sequence[mujoco.MjvCamera]) -> None:
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
        """The object that has the field, and the field's path in it."""
        if not name.startswith(CAMERA_FIELD):
            return self._model, name
        _, number, path = name.split(".", 2)
        return self._cameras[int(number)], path
