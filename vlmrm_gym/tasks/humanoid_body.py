"""Positions and orientations of the parts of Gymnasium's humanoid, from `qpos` alone."""

import threading
from functools import cache, cached_property
from pathlib import Path

import gymnasium.envs.mujoco
import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.tasks.known_states import Numbers

XML = Path(gymnasium.envs.mujoco.__file__).parent / "assets" / "humanoid.xml"

SIDES = (("left", 1), ("right", -1))
"""Sides of the robot, each with the sign of its y coordinates: the y axis points to the robot's left."""

Points = NDArray[np.float64]
"""Points or vectors, float64 (N, 3), in metres."""


@cache
def plain_model() -> mujoco.MjModel:
    """Gymnasium's humanoid without our textures. Cached: must not be changed."""
    return mujoco.MjModel.from_xml_path(str(XML))


class _Scratch(threading.local):
    """An `MjData` per thread for kinematics: creating one takes 40 times as long as using it for a state."""

    @cached_property
    def data(self) -> mujoco.MjData:
        return mujoco.MjData(plain_model())


_SCRATCH = _Scratch()


class Body:
    """The parts of the humanoid in N states, float (N, 24): root, then 17 joint angles in radians."""

    def __init__(self, qpos: ArrayLike) -> None:
        model = plain_model()
        states = np.asarray(qpos, dtype=np.float64)
        if states.ndim != 2 or states.shape[1] != model.nq or not np.isfinite(states).all():
            raise ValueError(f"`qpos` must be finite, of shape (N, {model.nq}). Received shape {states.shape}.")
        data = _SCRATCH.data
        self._positions, self._axes = np.empty((2, len(states), model.ngeom, 3))
        self._frames = np.empty((len(states), model.nbody, 3, 3))
        self._origins = np.empty((len(states), model.nbody, 3))
        self.centre_of_mass: Points = np.empty((len(states), 3))
        for i, state in enumerate(states):
            data.qpos[:] = state
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            self._positions[i] = data.geom_xpos
            self._axes[i] = data.geom_xmat.reshape(-1, 3, 3)[:, :, 2]
            self._frames[i] = data.xmat.reshape(-1, 3, 3)
            self._origins[i] = data.xpos
            self.centre_of_mass[i] = data.subtree_com[1]

    def point(self, geom: str) -> Points:
        """Locate the centre of a geom."""
        return self._positions[:, _geom_id(geom)]

    def origin(self, body: str) -> Points:
        """Locate the origin of a body's frame; for limbs, that is the joint above."""
        return self._origins[:, _body_id(body)]

    def clearance(self, *geoms: str) -> Numbers:
        """Height above the floor of the lowest point of some geoms; negative if they penetrate it."""
        numbers = [_geom_id(geom) for geom in geoms]
        model = plain_model()
        radius, half = model.geom_size[numbers, 0], model.geom_size[numbers, 1]
        half = np.where(model.geom_type[numbers] == mujoco.mjtGeom.mjGEOM_CAPSULE, half, 0.0)
        lowest = self._positions[:, numbers, 2] - half * np.abs(self._axes[:, numbers, 2]) - radius
        return lowest.min(axis=1)

    def lowest(self) -> Numbers:
        """Height above the floor of the lowest point of the whole body."""
        model = plain_model()
        return self.clearance(*(model.geom(i).name for i in range(model.ngeom) if i != model.geom("floor").id))

    def up(self, body: str = "torso") -> Numbers:
        """Cosine of a body's tilt: 1 upright, 0 lying, -1 upside down."""
        return self.direction(body, 2)[:, 2]

    def direction(self, body: str, axis: int) -> Points:
        """An axis of a body's frame, a unit vector in world coordinates: 0 points forward, 1 left, 2 up."""
        return self._frames[:, _body_id(body), :, axis]

    def leftward(self, vector: Points) -> Numbers:
        """Horizontal component of vectors towards the robot's left."""
        return _horizontal_component(vector, self.direction("pelvis", 1))

    def ahead(self, vector: Points) -> Numbers:
        """Horizontal component of vectors towards the robot's front."""
        left = self.direction("pelvis", 1)
        return _horizontal_component(vector, np.stack([left[:, 1], -left[:, 0], left[:, 2]], axis=1))

    def torso_coordinates(self, geom: str) -> tuple[Numbers, Numbers, Numbers]:
        """Coordinates of a geom's centre in the torso's frame: forward, left, up."""
        offset = self.point(geom) - self.origin("torso")
        ahead, left, above = (np.einsum("ni,ni->n", offset, self.direction("torso", axis)) for axis in range(3))
        return ahead, left, above

    def forearm_distance(self) -> Numbers:
        """Smallest distance between the centre lines of the forearms, hands included."""
        along = np.linspace(0.0, 1.0, 9)[:, None]
        left, right = (
            self.origin(f"{side}_lower_arm")[:, None] * (1 - along) + self.point(f"{side}_hand")[:, None] * along
            for side in ("left", "right")
        )
        return np.linalg.norm(left[:, :, None] - right[:, None], axis=-1).min(axis=(1, 2))


def _horizontal_component(vector: Points, towards: Points) -> Numbers:
    """Components of vectors along the horizontal projection of others."""
    horizontal = towards[:, :2] / np.maximum(1e-9, np.linalg.norm(towards[:, :2], axis=1, keepdims=True))
    return np.einsum("ni,ni->n", vector[:, :2], horizontal)


@cache
def _geom_id(name: str) -> int:
    return plain_model().geom(name).id


@cache
def _body_id(name: str) -> int:
    return plain_model().body(name).id
