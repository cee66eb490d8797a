"""From what users pass as `camera` to a list of MuJoCo cameras: one camera, a list of them, or a named set."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import mujoco

from vlmrm_gym.rendering.cameras import FIELDS, Camera, camera_names, get_fields, make_camera
from vlmrm_gym.tasks import PAPER_CAMERA

Cameras = Camera | mujoco.MjvCamera | Sequence[Camera | mujoco.MjvCamera]
"""One camera, a name of `VIEW_SETS`, or a list of such."""

VIEW_SETS: Mapping[str, Sequence[float] | None] = {
    "paper": None,
    "side": (-90,),
    "front-side": (0, -90),
    "around": (0, -90, 180, 90),
}
"""Named sets: azimuths of their cameras relative to the environment's own camera, in degrees.

"paper" is `PAPER_CAMERA`. A camera of the model that has the same name takes precedence."""


def make_cameras(
    model: mujoco.MjModel, cameras: Cameras | None, own: Camera | mujoco.MjvCamera | None = None
) -> list[mujoco.MjvCamera]:
    """Make the cameras that a user describes.

    Args:
        model: The model whose cameras and bodies the settings name.
        cameras: A camera (see `make_camera`), the name of a set in `VIEW_SETS`, or a list of such.
        own: The camera to which named sets are relative: the environment's own. None: MuJoCo's default view.

    Raises:
        ValueError: The list is empty, two cameras are the same, a name is unknown, or `make_camera` rejects a camera.
    """
    own = own if isinstance(own, mujoco.MjvCamera) else make_camera(model, own)
    made = [camera for one in _as_list(cameras) for camera in _expand(model, one, own)]
    fields = [
        {name: str(value % 360 if name == "azimuth" else value) for name, value in get_fields(camera).items()}
        for camera in made
    ]
    for i, own_fields in enumerate(fields):
        if own_fields in fields[:i]:
            raise ValueError(
                f"`camera` must have different cameras. Numbers {fields.index(own_fields)} and {i} are the same. "
                f"Received {cameras!r}."
            )
    return made


def _as_list(cameras: Any) -> Sequence[Any]:
    if not isinstance(cameras, list | tuple):
        return [cameras]
    if not cameras:
        raise ValueError(f"`camera` must be a camera, or a list of at least one. Received {cameras!r}.")
    return cameras


def _expand(model: mujoco.MjModel, camera: Any, own: mujoco.MjvCamera) -> Sequence[mujoco.MjvCamera]:
    if isinstance(camera, mujoco.MjvCamera):
        return [copy.copy(camera)]
    if not isinstance(camera, str):
        return [make_camera(model, camera)]
    if camera in camera_names(model) or camera not in VIEW_SETS:
        try:
            return [make_camera(model, camera)]
        except ValueError as error:
            raise ValueError(f"{error} Named sets: {', '.join(map(repr, VIEW_SETS))}.") from None
    azimuths = VIEW_SETS[camera]
    if azimuths is None:
        return [make_camera(model, PAPER_CAMERA)]
    if own.type == mujoco.mjtCamera.mjCAMERA_FIXED:
        raise ValueError(
            f"`camera`: the set {camera!r} turns the environment's own camera, which is fixed in its model here. Pass "
            f"a list of cameras, as names or as mappings of {', '.join(FIELDS)}."
        )
    turned = [copy.copy(own) for _ in azimuths]
    for one, azimuth in zip(turned, azimuths, strict=True):
        one.azimuth += azimuth
    return turned
