"""How scenes of states differ from the scene that a renderer was made for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

CAMERA_FIELD = "camera."
"""Prefix of the fields of a renderer's cameras in scene changes; other fields are of the model."""


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
