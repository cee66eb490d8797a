"""From the camera settings that users pass to a MuJoCo camera, with validation."""

import copy
import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.validation import is_number

Camera = Mapping[str, Any] | str | int
"""Fields of MuJoCo's `mjvCamera`, or the name or number of a camera of the model."""

FIELDS = ("type", "fixedcamid", "trackbodyid", "lookat", "distance", "azimuth", "elevation", "orthographic")
TYPES = {
    "free": mujoco.mjtCamera.mjCAMERA_FREE,
    "tracking": mujoco.mjtCamera.mjCAMERA_TRACKING,
    "fixed": mujoco.mjtCamera.mjCAMERA_FIXED,
}


def make_camera(model: mujoco.MjModel, camera: Camera | None = None) -> mujoco.MjvCamera:
    """Make a camera from settings.

    Args:
        model: The model whose cameras and bodies the settings name.
        camera: One of

            - None: MuJoCo's default view of the model,
            - a mapping of `mjvCamera`'s fields: `distance` (metres, from a millionth of `model.stat.extent` to MuJoCo's
              far clipping plane, `vis.map.zfar` extents), `azimuth` and `elevation` (degrees), `lookat` (three numbers,
              each within 10,000 extents of `model.stat.center`), `trackbodyid` and `fixedcamid` (a number or a name),
              `orthographic` (a bool), and `type`: "free", "tracking" or "fixed". Without a type, `fixedcamid` makes the
              camera fixed, and `trackbodyid` without a `lookat`, which only a free camera has, makes it a tracking one
              (as in the published VLM-RM code),
            - the name or number of one of the model's cameras.

    Raises:
        ValueError: Unknown camera, body or field (the message lists the valid ones), or a value is out of its range.
    """
    made = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, made)
    if camera is None:
        return made
    if isinstance(camera, str | Integral) and not isinstance(camera, bool):
        camera = {"type": "fixed", "fixedcamid": camera}
    if not isinstance(camera, Mapping):
        raise ValueError(f"`camera` must be a mapping of {FIELDS}, or a camera's name or number. Received {camera!r}.")
    unknown = [field for field in camera if field not in FIELDS]
    if unknown:
        raise ValueError(
            f"`camera` has no field {unknown[0]!r}. Valid fields: {', '.join(FIELDS)}. Received {dict(camera)!r}."
        )

    made.type = _type(camera)
    for field in ("distance", "azimuth", "elevation"):
        if field in camera:
            setattr(made, field, _number(field, camera[field]))
    if "distance" in camera:
        _check_distance(model, made.distance)
    if "lookat" in camera:
        lookat = np.asarray(camera["lookat"], dtype=object).ravel()
        if len(lookat) != 3:
            raise ValueError(f"`camera`: lookat must be three numbers. Received {camera['lookat']!r}.")
        made.lookat[:] = [_number("lookat", value) for value in lookat]
        _check_lookat(model, made.lookat)
    if "orthographic" in camera:
        if not isinstance(camera["orthographic"], bool | np.bool_):
            raise ValueError(f"`camera`: orthographic must be True or False. Received {camera['orthographic']!r}.")
        made.orthographic = bool(camera["orthographic"])
    if made.type == TYPES["tracking"]:
        made.trackbodyid = _identify(model, mujoco.mjtObj.mjOBJ_BODY, "body", camera.get("trackbodyid"))
    if made.type == TYPES["fixed"]:
        made.fixedcamid = _identify(model, mujoco.mjtObj.mjOBJ_CAMERA, "camera", camera.get("fixedcamid"))
    return made


def set_fields(camera: mujoco.MjvCamera, fields: Mapping[str, Any]) -> None:
    """Set fields of a camera; the values are not validated."""
    for field, value in fields.items():
        if field == "lookat":
            camera.lookat[:] = value
        else:
            setattr(camera, field, value)


def get_fields(camera: mujoco.MjvCamera) -> dict[str, Any]:
    """All fields of a camera, copied, so that they can be pickled."""
    return {field: copy.copy(getattr(camera, field)) for field in FIELDS}


def camera_names(model: mujoco.MjModel) -> list[str]:
    """The names of a model's cameras, by number; "" for a camera without a name."""
    return [model.camera(i).name for i in range(model.ncam)]


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
    if not is_number(value):
        raise ValueError(f"`camera`: {field} must be a number. Received {value!r}.")
    try:
        number = float(value)  # pyright: ignore[reportArgumentType]
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"`camera`: {field} must be finite. Received {value!r}.")
    return number


def _check_distance(model: mujoco.MjModel, distance: float) -> None:
    nearest, farthest = 1e-6 * model.stat.extent, model.vis.map.zfar * model.stat.extent
    if distance <= 0:
        raise ValueError(f"`camera`: distance must be positive. Received {distance!r}.")
    if not nearest <= distance <= farthest:
        raise ValueError(
            f"`camera`: distance must be from {nearest:.3g} to {farthest:.6g} metres for this model. Received "
            f"{distance!r}: the picture would be empty."
        )


def _check_lookat(model: mujoco.MjModel, lookat: NDArray[np.float64]) -> None:
    # Bodies move away from their initial position, so this is far more than is visible from there.
    farthest = 1e4 * model.stat.extent
    if np.abs(lookat - model.stat.center).max() > farthest:
        raise ValueError(
            f"`camera`: lookat must be within {farthest:.6g} metres of the model's centre. Received "
            f"{lookat.tolist()}: the picture would be empty."
        )


def _identify(model: mujoco.MjModel, kind: mujoco.mjtObj, noun: str, wanted: object) -> int:
    """The number of a body or camera given by name or number."""
    count = {"body": model.nbody, "camera": model.ncam}[noun]
    names = [mujoco.mj_id2name(model, kind, i) or "" for i in range(count)]
    if isinstance(wanted, str) and wanted in names and wanted:
        return names.index(wanted)
    if is_number(wanted) and wanted in range(count):
        return int(wanted)  # pyright: ignore[reportArgumentType]
    valid = ", ".join(f"{i} ({name!r})" if name else str(i) for i, name in enumerate(names)) or "none"
    raise ValueError(f"`camera`: this model has no {noun} {wanted!r}. Valid: {valid}. Received {wanted!r}.")
