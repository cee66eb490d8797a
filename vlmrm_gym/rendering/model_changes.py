"""Applies scene changes to the MuJoCo model that is rendered."""

from collections.abc import Sequence
from typing import Any

import mujoco

from vlmrm_gym.rendering.model_fields import LARGE, frozen_copy, get_field, same_value, set_field
from vlmrm_gym.rendering.scene_changes import CAMERA_FIELD, SceneChange

_UPLOADED = (*LARGE, "mat_tex", "vis.map", "vis.rgba", "stat.extent", "stat.center")
"""Prefixes of fields that are uploaded to the OpenGL context."""


def camera_field(number: int, name: str) -> str:
    """The name that a camera's field has in scene changes."""
    return f"{CAMERA_FIELD}{number}.{name}"


class AppliedChanges:
    """Applies the scene changes of successive states to a renderer's model and camera.

    Args:
        model: The renderer's model; it is written to.
        cameras: The renderer's cameras; fields named by `camera_field` are written to them.
    """

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
