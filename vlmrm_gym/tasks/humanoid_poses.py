"""A library of humanoid poses: legs and arms, in degrees, that can be combined; and what is known of their success.

A joint without a side ("knee") means both sides, mirrored; angles that are not listed are 0. The poses were found by
searching the humanoid's joint ranges, which are narrower than a person's: its arms rise only 45 degrees above the
shoulder, and its hips do not turn far enough to lay the shins flat in the lotus position.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import mujoco
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.tasks.humanoid_body import Body, plain_model
from vlmrm_gym.tasks.humanoid_success import SUCCESS_CRITERIA, soft_success, succeeds
from vlmrm_gym.tasks.known_states import NEAR_MISS, Numbers, Rows, StatePath, worst_margin
from vlmrm_gym.tasks.mujoco_states import MuJoCoStates


@dataclass(frozen=True, kw_only=True)
class Legs:
    """Orientation of the torso, and joint angles of trunk and legs, in degrees."""

    pitch: float = 0.0
    """90 is face down, -90 on the back."""
    roll: float = 0.0
    """90 is on the right side, -90 on the left."""
    joints: Mapping[str, float] = field(default_factory=dict)


LEGS: Mapping[str, Legs] = {
    "stand": Legs(joints={"knee": -3}),
    "stand wide": Legs(joints={"hip_x": -20, "knee": -3}),
    "stand, knees bent": Legs(joints={"hip_y": -30, "knee": -50, "abdomen_y": -5}),
    "one leg, left lifted": Legs(joints={"left_hip_y": -75, "left_knee": -95, "right_knee": -3}, roll=2),
    "one leg, right lifted": Legs(joints={"right_hip_y": -75, "right_knee": -95, "left_knee": -3}, roll=-2),
    "one leg, left aside": Legs(joints={"left_hip_x": -25, "right_hip_x": -16, "knee": -3}, roll=16),
    "one leg, right aside": Legs(joints={"right_hip_x": -25, "left_hip_x": -16, "knee": -3}, roll=-16),
    "one leg, left behind": Legs(joints={"left_hip_y": 15, "left_knee": -95, "right_knee": -3}, pitch=2),
    "one leg, right behind": Legs(joints={"right_hip_y": 15, "right_knee": -95, "left_knee": -3}, pitch=2),
    "kneel": Legs(joints={"knee": -95}),
    "kneel on heels": Legs(joints={"hip_y": -62, "knee": -152}, pitch=2),
    "kneel, knees apart": Legs(joints={"hip_x": -22, "hip_y": -8, "knee": -103}),
    "half kneel, left": Legs(joints={"left_hip_y": 0, "left_knee": -90, "right_hip_y": -88, "right_knee": -88}),
    "half kneel, right": Legs(joints={"right_hip_y": 0, "right_knee": -90, "left_hip_y": -88, "left_knee": -88}),
    "lotus": Legs(joints={"abdomen_y": -18, "hip_z": -58, "hip_y": -65, "hip_x": 1, "knee": -155}, pitch=-11),
    "lotus, upright": Legs(joints={"abdomen_y": -25, "hip_z": -58, "hip_y": -82, "hip_x": 1, "knee": -155}, pitch=5),
    "splits": Legs(joints={"hip_x": -24, "hip_z": -59, "hip_y": -68, "knee": -3, "abdomen_y": -12}),
    "splits, leaning": Legs(joints={"hip_x": -24, "hip_z": -59, "hip_y": -62, "knee": -3, "abdomen_y": -45}, pitch=28),
    "sit": Legs(joints={"hip_y": -88, "knee": -4, "abdomen_y": -5}),
    "sit, knees up": Legs(joints={"hip_y": -105, "knee": -85, "abdomen_y": -20}, pitch=-5),
    "sit, legs apart": Legs(joints={"hip_y": -86, "hip_z": -32, "knee": -4}),
    "crouch": Legs(joints={"hip_y": -105, "knee": -125, "abdomen_y": -35}, pitch=32),
    "squat": Legs(joints={"hip_y": -80, "knee": -95, "abdomen_y": -15}, pitch=12),
    "bend": Legs(joints={"hip_y": -45, "abdomen_y": -55, "knee": -4}, pitch=85),
    "bow": Legs(joints={"hip_y": -35, "abdomen_y": -20, "knee": -4}, pitch=50),
    "all fours": Legs(joints={"hip_y": -75, "knee": -80}, pitch=72),
    "lie on back": Legs(pitch=-90, joints={"knee": -5}),
    "lie on back, knees up": Legs(pitch=-90, joints={"hip_y": -50, "knee": -95}),
    "lie on front": Legs(pitch=90, joints={"knee": -5}),
    "lie on left side": Legs(roll=-90, joints={"hip_y": -20, "knee": -30}),
    "lie on right side": Legs(roll=90, joints={"hip_y": -20, "knee": -30}),
    "lean forward": Legs(pitch=35, joints={"knee": -4}),
    "lean back": Legs(pitch=-35, joints={"knee": -4}),
    "lean left": Legs(roll=-35, joints={"knee": -4}),
    "lean right": Legs(roll=35, joints={"knee": -4}),
    "upside down": Legs(pitch=180, joints={"knee": -5}),
}  # fmt: skip

ARMS: Mapping[str, Mapping[str, float]] = {
    "loose": {},
    "down": {"shoulder1": 37, "shoulder2": -52, "elbow": -64},
    "raised": {"shoulder1": -80, "shoulder2": -8, "elbow": -38},
    "raised, elbows bent": {"shoulder1": -70, "elbow": -20},
    "left raised": {
        "left_shoulder1": 80, "left_shoulder2": 8, "left_elbow": -38,
        "right_shoulder1": 37, "right_shoulder2": -52, "right_elbow": -64,
    },
    "right raised": {
        "right_shoulder1": -80, "right_shoulder2": -8, "right_elbow": -38,
        "left_shoulder1": -37, "left_shoulder2": 52, "left_elbow": -64,
    },
    "on hips": {"shoulder1": 48, "shoulder2": -59, "elbow": -14},
    "left on hip": {
        "left_shoulder1": -48, "left_shoulder2": 59, "left_elbow": -14,
        "right_shoulder1": 37, "right_shoulder2": -52, "right_elbow": -64,
    },
    "crossed": {
        "right_shoulder1": 58, "right_shoulder2": 26, "right_elbow": -48,
        "left_shoulder1": -58, "left_shoulder2": -13, "left_elbow": -53,
    },
    "crossed, left over right": {
        "right_shoulder1": 58, "right_shoulder2": 13, "right_elbow": -53,
        "left_shoulder1": -58, "left_shoulder2": -26, "left_elbow": -48,
    },
    "hands together": {"shoulder1": 51, "shoulder2": -17, "elbow": 13},
    "hands on chest": {"shoulder1": 49, "shoulder2": -28, "elbow": 38},
    "hands on head": {"shoulder1": 32, "shoulder2": 53, "elbow": 33},
    "out": {"shoulder1": -51, "shoulder2": -40, "elbow": -77},
    "forward": {"shoulder1": 0, "shoulder2": 31, "elbow": -63},
    "behind": {"shoulder1": 60, "shoulder2": -85, "elbow": -32},
}  # fmt: skip
"""Joint angles in degrees; those without a side are the right arm's, mirrored for the left."""

TASK_POSES: Mapping[str, tuple[str, str]] = {
    "kneel": ("kneel", "loose"),
    "lotus": ("lotus", "loose"),
    "stand": ("stand", "down"),
    "arms-raised": ("stand", "raised"),
    "splits": ("splits", "out"),
    "hands-on-hips": ("stand", "on hips"),
    "arms-crossed": ("stand", "crossed"),
    "one-leg": ("one leg, left lifted", "out"),
}
"""Goal pose of each humanoid task: legs and arms for `pose`."""

_MIRRORED = ("shoulder1", "shoulder2")
"""Joints whose angle has the opposite sign on the left side."""
_ROOT_SIZE = 7
"""Values of the root in `qpos`, before the joints."""
_CANDIDATES = 4
"""How many poses are drawn for each of those that are close to the task and wrong."""


def pose(legs: str = "stand", arms: str = "loose", *, yaw: float = 0.0) -> NDArray[np.float64]:
    """A pose of `LEGS` and `ARMS` on the floor at the origin: `qpos`, float64 (24,). `yaw`: heading in degrees."""
    body = LEGS[legs]
    qpos = np.zeros(plain_model().nq)
    qpos[3:_ROOT_SIZE] = orientation(yaw, body.pitch, body.roll)
    for joint, degrees in {**body.joints, **ARMS[arms]}.items():
        for name, number in _joints().items():
            if name == joint or name in (f"left_{joint}", f"right_{joint}"):
                mirrored = joint in _MIRRORED and name.startswith("left")
                qpos[number] = np.deg2rad(-degrees if mirrored else degrees)
    return on_floor(qpos[None])[0]


def interpolate_from_stand(task: str, fractions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Interpolate from standing (0) to a task's pose (1): `qpos`, float64 (N, 24), maybe in the air."""
    start, end = pose(), pose(*TASK_POSES[task])
    states = start + fractions[:, None] * (end - start)
    states[:, 3:_ROOT_SIZE] /= np.linalg.norm(states[:, 3:_ROOT_SIZE], axis=1, keepdims=True)
    return states


def orientation(yaw: float, pitch: float, roll: float) -> NDArray[np.float64]:
    """The quaternion of a roll, then a pitch, then a yaw, in degrees: float64 (4,)."""
    quaternion = np.empty(4)
    mujoco.mju_euler2Quat(quaternion, np.deg2rad([yaw, pitch, roll]), "zyx")
    return quaternion


def on_floor(states: NDArray[np.float64]) -> NDArray[np.float64]:
    """States, float64 (N, 24), with their joints within limits and their lowest point on the floor."""
    low, high = plain_model().jnt_range[1:].T
    placed = states.copy()
    placed[:, _ROOT_SIZE:] = np.clip(states[:, _ROOT_SIZE:], low, high)
    placed[:, 2] -= Body(placed).lowest()
    return placed


@cache
def _joints() -> Mapping[str, int]:
    model = plain_model()
    return {model.joint(i).name: int(model.jnt_qposadr[i]) for i in range(1, model.njnt)}


class HumanoidStates(MuJoCoStates):
    """`qpos`, float64 (N, 24), of a task in `SUCCESS_CRITERIA`; None: success is unknown."""

    def __init__(self, task: str | None) -> None:
        success_fn = None if task is None else lambda states: succeeds(task, states)
        super().__init__(plain_model(), pose()[None], success_fn)
        self._task = task

    def grade(self, states: Rows) -> Numbers | None:
        """`soft_success`: 1 for success."""
        return None if self._task is None else soft_success(self.margins(states).values())

    def margins(self, states: Rows) -> Mapping[str, Numbers]:
        """See `TaskStates`."""
        return {} if self._task is None else SUCCESS_CRITERIA[self._task](Body(states))

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """A third of them successes, a third wrong poses closest to the task, a third any poses."""
        if self._task is None:
            return near_poses(count, rng)
        third = count // 3
        parts = [self.goals(third, rng), closest_failures(self._task, third, rng), near_poses(count - 2 * third, rng)]
        return np.concatenate(parts)

    def goals(self, count: int, rng: np.random.Generator) -> Rows:
        """See `TaskStates`."""
        return super().goals(count, rng) if self._task is None else true_states(self._task, count, rng)

    def example_goal(self) -> Numbers | None:
        """Return the task's pose."""
        return None if self._task is None else pose(*TASK_POSES[self._task])

    def place(self, states: Rows) -> Rows:
        """Place the states with their lowest point on the floor, at the origin."""
        placed = states.copy()
        placed[:, :2] = 0
        return on_floor(placed)

    def on_the_way(self, fractions: Numbers) -> Rows | None:
        """Between standing and the task's pose."""
        return None if self._task is None else on_floor(interpolate_from_stand(self._task, fractions))

    def paths(self) -> Sequence[StatePath]:
        """Return a line from standing to the task's pose, and lines to the poses of all tasks for one plot."""
        to_task = [] if self._task is None else [_path(f"From standing to {self._task}", self._task)]
        return [*to_task, *(_path("From standing into the poses of all tasks", task, line=task) for task in TASK_POSES)]


def _path(title: str, task: str, line: str | None = None) -> StatePath:
    shares = np.linspace(0, 1, 26)
    return StatePath(
        title=title,
        axis="way from the initial pose (%)",
        positions=100 * shares,
        states=on_floor(interpolate_from_stand(task, shares)),
        line=line,
    )


def near_poses(count: int, rng: np.random.Generator) -> Rows:
    """Random combinations of the library's legs and arms, with noise of 5 degrees on their joints, on the floor."""
    legs, arms = rng.choice(list(LEGS), count), rng.choice(list(ARMS), count)
    return _with_noise(zip(legs, arms, strict=True), 5, rng)


def _with_noise(names: Iterable[tuple[str, str]], degrees: float, rng: np.random.Generator) -> Rows:
    """Poses in random directions, on the floor, with normal noise on their joints."""
    states = np.reshape([pose(*one, yaw=rng.normal(0, 10)) for one in names], (-1, plain_model().nq))
    states[:, _ROOT_SIZE:] += rng.normal(0, np.deg2rad(degrees), (len(states), 17))
    return on_floor(states)


def true_states(task: str, count: int, rng: np.random.Generator) -> Rows:
    """Library poses that succeed at a task, with noise of 3 degrees on their joints, and still succeed."""
    library = [(legs, arms) for legs in LEGS for arms in ARMS if succeeds(task, pose(legs, arms)[None])[0]]
    successes = [np.empty((0, plain_model().nq))]
    while sum(map(len, successes)) < count:
        states = _with_noise([library[i] for i in rng.integers(len(library), size=count)], 3, rng)
        successes.append(states[succeeds(task, states)])
    return np.concatenate(successes)[:count]


def closest_failures(task: str, count: int, rng: np.random.Generator) -> Rows:
    """Find the poses closest to a task among many that fail it by more than a near miss."""
    pool = near_poses(_CANDIDATES * max(count, 8), rng)
    margins = SUCCESS_CRITERIA[task](Body(pool)).values()
    wrong = worst_margin(margins) < -NEAR_MISS
    order = np.argsort(-soft_success(margins), kind="stable")
    return pool[order[wrong[order]]][:count]
