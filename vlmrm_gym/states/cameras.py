"""Makes MuJoCo cameras of what users pass as `camera`: settings, names, named sets, and lists of such."""

import copy
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import mujoco
import numpy as np

from vlmrm_gym._util.validation import check_finite, check_flag, check_that, is_number, short_repr
from vlmrm_gym.states.scene_changes import set_field

Camera = Mapping[str, Any] | str | int
"""Fields of MuJoCo's `mjvCamera`, or the name or number of a camera of the model."""
Cameras = Camera | mujoco.MjvCamera | Sequence[Camera | mujoco.MjvCamera]
"""One camera, a name of `VIEW_SETS`, or a list of such."""

PAPER_CAMERA: Mapping[str, Any] = {"distance": 3.5, "lookat": [0.0, 0.0, 1.0], "elevation": -10.0, "azimuth": 180.0}
"""A fixed camera in front of the humanoid; distances in metres, angles in degrees."""
FIELDS = ("type", "fixedcamid", "trackbodyid", "lookat", "distance", "azimuth", "elevation", "orthographic")
TYPES = {
    "free": mujoco.mjtCamera.mjCAMERA_FREE,
    "tracking": mujoco.mjtCamera.mjCAMERA_TRACKING,
    "fixed": mujoco.mjtCamera.mjCAMERA_FIXED,
}
VIEW_SETS: Mapping[str, Sequence[float] | None] = {
    "paper": None,
    "side": (-90,),
    "front-side": (0, -90),
    "around": (0, -90, 180, 90),
}
"""Named sets: azimuths of their cameras relative to the environment's own camera, in degrees.

"paper" is `PAPER_CAMERA`. A camera of the model that has the same name takes precedence."""


def make_cameras(
    model: mujoco.MjModel, cameras: Cameras | None, reference: Camera | mujoco.MjvCamera | None = None
) -> list[mujoco.MjvCamera]:
    """Make the cameras that a user describes: one (see `make_camera`), a set's name in `VIEW_SETS`, or a list of such.

    Named sets are relative to `reference`, the environment's own camera; None: MuJoCo's default view.
    """
    (base,) = _expand(model, reference, mujoco.MjvCamera())
    listed: Sequence[Any] = cameras if isinstance(cameras, list | tuple) else [cameras]
    check_that(len(listed) > 0, "camera", "a camera, or a list of at least one", cameras)
    return [camera for one in listed for camera in _expand(model, one, base)]


def _expand(model: mujoco.MjModel, camera: Any, reference: mujoco.MjvCamera) -> Sequence[mujoco.MjvCamera]:
    if isinstance(camera, mujoco.MjvCamera):
        return [copy.copy(camera)]
    is_set = isinstance(camera, str) and camera in VIEW_SETS and camera not in _names(model, "camera")
    azimuths = VIEW_SETS[camera] if is_set else None
    if azimuths is None:
        return [make_camera(model, PAPER_CAMERA if is_set else camera)]
    if reference.type == TYPES["fixed"]:
        raise ValueError(
            f"`camera`: the set {camera!r} turns the environment's own camera, which is fixed in its model here. Pass "
            f"a list of cameras, as names or as mappings of {', '.join(FIELDS)}."
        )
    turned = [copy.copy(reference) for _ in azimuths]
    for one, azimuth in zip(turned, azimuths, strict=True):
        one.azimuth += azimuth
    return turned


def make_camera(model: mujoco.MjModel, camera: Camera | None = None) -> mujoco.MjvCamera:
    """Make a camera from settings; a ValueError lists what is valid.

    None is MuJoCo's default view, a string or an integer one of the model's cameras. A mapping has fields of
    `mjvCamera`: `distance` (metres), `azimuth` and `elevation` (degrees), `lookat` (three numbers, metres),
    `trackbodyid` and `fixedcamid` (a number or a name), `orthographic` (a bool), and `type`: "free", "tracking" or
    "fixed". Without a type, `fixedcamid` makes the camera fixed, and `trackbodyid` without a `lookat`, which only a
    free camera has, makes it a tracking one (as in the published VLM-RM code).
    """
    result = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, result)
    if camera is None:
        return result
    if isinstance(camera, str | Integral) and not isinstance(camera, bool):
        camera = {"type": "fixed", "fixedcamid": camera}
    if not isinstance(camera, Mapping):
        rule = f"`camera` must be a mapping of {', '.join(FIELDS)}, or a camera's name or number"
        raise ValueError(f"{rule}. Received {short_repr(camera)}.")
    unknown = [field for field in camera if field not in FIELDS]
    if unknown:
        raise ValueError(
            f"`camera` has no field {unknown[0]!r}. Valid fields: {', '.join(FIELDS)}. Received {short_repr(camera)}."
        )
    result.type = _type(camera)
    for field in ("distance", "azimuth", "elevation"):
        if field in camera:
            setattr(result, field, check_finite(f"camera.{field}", camera[field]))
    if "lookat" in camera:
        lookat = np.asarray(camera["lookat"], dtype=object).ravel()
        check_that(len(lookat) == 3, "camera.lookat", "three numbers", camera["lookat"])
        result.lookat[:] = [check_finite("camera.lookat", value) for value in lookat]
    _check_place(model, result)
    if "orthographic" in camera:
        check_flag("camera.orthographic", camera["orthographic"])
        result.orthographic = bool(camera["orthographic"])
    if result.type == TYPES["tracking"]:
        result.trackbodyid = _identify(model, "body", camera.get("trackbodyid"))
    if result.type == TYPES["fixed"]:
        result.fixedcamid = _identify(model, "camera", camera.get("fixedcamid"))
    return result


def from_fields(fields: Mapping[str, Any]) -> mujoco.MjvCamera:
    """Make a camera with these fields; the values are not validated."""
    camera = mujoco.MjvCamera()
    set_fields(camera, fields)
    return camera


def set_fields(camera: mujoco.MjvCamera, fields: Mapping[str, Any]) -> None:
    """Set fields of a camera; the values are not validated."""
    for field, value in fields.items():
        set_field(camera, field, value)


def get_fields(camera: mujoco.MjvCamera) -> dict[str, Any]:
    """Copy all fields of a camera, so that they can be pickled and compared."""
    return {field: getattr(camera, field) for field in FIELDS} | {"lookat": tuple(camera.lookat.tolist())}


def _type(camera: Mapping[str, Any]) -> int:
    kind = camera.get("type")
    if kind is None:
        if camera.get("fixedcamid", -1) not in (-1, None):
            return TYPES["fixed"]
        return TYPES["tracking"] if "trackbodyid" in camera and "lookat" not in camera else TYPES["free"]
    for name, number in TYPES.items():
        if kind in (name, number):
            return number
    raise ValueError(f"`camera.type` must be one of {', '.join(TYPES)}. Received {short_repr(kind)}.")


def _check_place(model: mujoco.MjModel, camera: mujoco.MjvCamera) -> None:
    """Raise a ValueError if nothing could be seen."""
    near, far = 1e-6 * model.stat.extent, model.vis.map.zfar * model.stat.extent
    rule = f"from {near:.3g} to {far:.6g} metres for this model, else the picture would be empty"
    check_that(near <= camera.distance <= far, "camera.distance", rule, camera.distance)
    # Bodies move away from their initial position, so this is far more than is visible from there.
    away = 1e4 * model.stat.extent
    rule = f"within {away:.6g} metres of the model's centre, else the picture would be empty"
    is_near = bool(np.abs(camera.lookat - model.stat.center).max() <= away)
    check_that(is_near, "camera.lookat", rule, camera.lookat.tolist())


def _names(model: mujoco.MjModel, noun: str) -> list[str]:
    """List the names of a model's bodies or cameras, by number; "" without a name."""
    count, get = {"body": (model.nbody, model.body), "camera": (model.ncam, model.camera)}[noun]
    return [get(i).name for i in range(count)]


def _identify(model: mujoco.MjModel, noun: str, wanted: object) -> int:
    names = _names(model, noun)
    if isinstance(wanted, str) and wanted in names and wanted:
        return names.index(wanted)
    if is_number(wanted) and wanted in range(len(names)):
        return int(wanted)  # pyright: ignore[reportArgumentType]
    valid = ", ".join(f"{i} ({name!r})" if name else str(i) for i, name in enumerate(names)) or "none"
    sets = f" Named sets: {', '.join(map(repr, VIEW_SETS))}." if noun == "camera" else ""
    raise ValueError(f"`camera`: this model has no {noun} {short_repr(wanted)}. Valid: {valid}.{sets}")
