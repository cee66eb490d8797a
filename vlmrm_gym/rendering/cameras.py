"""Camera settings as users write them, checked at the door, to MuJoCo's camera."""

import copy
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np

from vlmrm_gym.checks import is_number

Camera = Mapping[str, Any] | str | int
"""Fields of MuJoCo's `mjvCamera`, or the name or the number of a camera of the model."""

FIELDS = ("type", "fixedcamid", "trackbodyid", "lookat", "distance", "azimuth", "elevation", "orthographic")
TYPES = {
    "free": mujoco.mjtCamera.mjCAMERA_FREE,
    "tracking": mujoco.mjtCamera.mjCAMERA_TRACKING,
    "fixed": mujoco.mjtCamera.mjCAMERA_FIXED,
}


def make_camera(model: mujoco.MjModel, camera: Camera | None = None) -> mujoco.MjvCamera:
    """The camera that settings describe.

    Args:
        model: Where cameras and bodies are looked up.
        camera: One of

            - None: MuJoCo's default view of the model,
            - a mapping of `mjvCamera`'s fields: `distance` (metres), `azimuth` and `elevation` (degrees), `lookat`
              (three numbers), `trackbodyid` and `fixedcamid` (a number or a name), `orthographic`, and `type`: "free",
              "tracking" or "fixed". Without a type, `fixedcamid` makes the camera fixed, and `trackbodyid` makes it a
              tracking one unless a `lookat` is there, which only a free camera has (so in the published VLM-RM code),
            - the name or the number of one of the model's cameras.

    Raises:
        ValueError: An unknown camera, body or field (names the valid ones), or a value out of its range.
    """
    made = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, made)
    if camera is None:
        return made
    if isinstance(camera, str | int) and not isinstance(camera, bool):
        camera = {"fixedcamid": camera}
    if not isinstance(camera, Mapping):
        raise ValueError(f"`camera` must be a mapping of {FIELDS}, or a camera's name or number. Received {camera!r}.")
    unknown = [field for field in camera if field not in FIELDS]
    if unknown:
        raise ValueError(f"`camera` has no field {unknown[0]!r}. Valid fields: {', '.join(FIELDS)}.")

    made.type = _type(camera)
    for field in ("distance", "azimuth", "elevation"):
        if field in camera:
            setattr(made, field, _number(field, camera[field]))
    if made.distance <= 0:
        raise ValueError(f"`camera`: distance must be positive. Received {camera['distance']!r}.")
    if "lookat" in camera:
        lookat = np.asarray(camera["lookat"], dtype=object).ravel()
        if len(lookat) != 3:
            raise ValueError(f"`camera`: lookat must be three numbers. Received {camera['lookat']!r}.")
        made.lookat[:] = [_number("lookat", value) for value in lookat]
    if "orthographic" in camera:
        made.orthographic = bool(camera["orthographic"])
    if made.type == TYPES["tracking"]:
        made.trackbodyid = _identify(model, mujoco.mjtObj.mjOBJ_BODY, "body", camera.get("trackbodyid"))
    if made.type == TYPES["fixed"]:
        made.fixedcamid = _identify(model, mujoco.mjtObj.mjOBJ_CAMERA, "camera", camera.get("fixedcamid"))
    return made


def set_fields(camera: mujoco.MjvCamera, fields: Mapping[str, Any]) -> None:
    """Set fields of a camera to valid values."""
    for field, value in fields.items():
        if field == "lookat":
            camera.lookat[:] = value
        else:
            setattr(camera, field, value)


def get_fields(camera: mujoco.MjvCamera) -> dict[str, Any]:
    """All fields of a camera, copied: what a pickle can hold."""
    return {field: copy.copy(getattr(camera, field)) for field in FIELDS}


def _type(camera: Mapping[str, Any]) -> int:
    kind = camera.get("type")
    if kind is None:
        if camera.get("fixedcamid", -1) not in (-1, None):
            return TYPES["fixed"]
        return TYPES["tracking"] if "trackbodyid" in camera and "lookat" not in camera else TYPES["free"]
    for name, number in TYPES.items():
        if kind == name or (not isinstance(kind, str) and kind == number):
            return number
    raise ValueError(f"`camera`: type must be one of {', '.join(TYPES)}. Received {kind!r}.")


def _number(field: str, value: object) -> float:
    if not is_number(value) or not np.isfinite(value):  # pyright: ignore[reportArgumentType, reportCallIssue]
        raise ValueError(f"`camera`: {field} must be finite. Received {value!r}.")
    return float(value)  # pyright: ignore[reportArgumentType]


def _identify(model: mujoco.MjModel, kind: mujoco.mjtObj, noun: str, wanted: object) -> int:
    """The number of a named or numbered body or camera."""
    count = {"body": model.nbody, "camera": model.ncam}[noun]
    names = [mujoco.mj_id2name(model, kind, i) or "" for i in range(count)]
    if isinstance(wanted, str) and wanted in names and wanted:
        return names.index(wanted)
    if is_number(wanted) and wanted in range(count):
        return int(wanted)  # pyright: ignore[reportArgumentType]
    valid = ", ".join(f"{i} ({name!r})" if name else str(i) for i, name in enumerate(names)) or "none"
    raise ValueError(f"`camera`: this model has no {noun} {wanted!r}. Valid: {valid}.")
