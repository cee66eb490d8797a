"""Humanoid states that the bundled model is trained and measured on."""

from collections.abc import Iterable, Mapping

import mujoco
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.tasks.humanoid_body import plain_model
from vlmrm_gym.tasks.humanoid_poses import ARMS, LEGS, on_floor, orientation, pose

LIMBS = (slice(10, 14), slice(14, 18), slice(18, 21), slice(21, 24))
"""Where `qpos` keeps the joints of the right leg, the left leg, the right arm and the left arm."""


def sample_states(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """`qpos`, float64 (count, 24): near library poses, mixtures of two, along random rollouts, and random."""
    shares = {_near_poses: 0.38, _between_poses: 0.12, _limbs_of_two_poses: 0.16, _rollouts: 0.24}
    parts = [sample(int(share * count), rng) for sample, share in shares.items()]
    parts.append(_random_joints(count - sum(map(len, parts)), rng))
    return rng.permutation(np.concatenate(parts))


_LEG_WEIGHTS = {"stand": 5.0, "kneel": 3.0, "lotus": 4.0, "splits": 5.0, "one": 1.2}
_ARM_WEIGHTS = {"raised": 2.0, "on": 3.0, "crossed": 2.5, "loose": 2.0}
"""Sampling weights by the first word of a pose's name, 0.75 where not listed; poses of the tasks weigh most."""


def _choose(names: Iterable[str], weights: Mapping[str, float], rng: np.random.Generator) -> str:
    choices = list(names)
    odds = np.array([weights.get(name.replace(",", "").split()[0], 0.75) for name in choices])
    return str(rng.choice(choices, p=odds / odds.sum()))


def _library_pose(rng: np.random.Generator) -> NDArray[np.float64]:
    return pose(_choose(LEGS, _LEG_WEIGHTS, rng), _choose(ARMS, _ARM_WEIGHTS, rng))


def _perturb(qpos: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """The state with noise on its joints, heading, tilt and position; sometimes lifted off the floor."""
    perturbed = qpos.copy()
    perturbed[7:] += rng.normal(0, np.deg2rad(rng.choice([2, 5, 10])), 17)
    yaw = rng.normal(0, 25) if rng.random() < 0.75 else rng.uniform(-180, 180)
    tilt = rng.normal(0, rng.choice([2, 6]), 2)
    turned = np.empty(4)
    mujoco.mju_mulQuat(turned, orientation(yaw, *tilt), qpos[3:7])
    perturbed[3:7] = turned
    perturbed = on_floor(perturbed[None])[0]
    perturbed[:2] = rng.normal(0, 0.2, 2)
    perturbed[2] += rng.uniform(0, 0.4) if rng.random() < 0.12 else rng.normal(0, 0.01)
    return perturbed


def _near_poses(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return np.stack([_perturb(_library_pose(rng), rng) for _ in range(count)])


def _between_poses(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    states = []
    for _ in range(count):
        start, end, part = _library_pose(rng), _library_pose(rng), rng.random()
        between = (1 - part) * start + part * end
        between[3:7] /= np.linalg.norm(between[3:7]) or 1.0
        states.append(_perturb(between, rng))
    return np.stack(states)


def _limbs_of_two_poses(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Each limb from one pose or the other, or from between: one arm raised and the other hand on its hip, say."""
    states = []
    for _ in range(count):
        mixed, other = _library_pose(rng), _library_pose(rng)
        for limb in LIMBS:
            part = rng.choice([0.0, 1.0, rng.random()])
            mixed[limb] = (1 - part) * mixed[limb] + part * other[limb]
        states.append(_perturb(mixed, rng))
    return np.stack(states)


def _random_joints(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    limits = plain_model().jnt_range[1:]
    states = np.zeros((count, plain_model().nq))
    states[:, 7:] = rng.uniform(limits[:, 0], limits[:, 1], (count, 17))
    quaternions = rng.normal(0, 1, (count, 4))
    quaternions[rng.random(count) < 0.5, 0] += 4.0  # more or less upright
    states[:, 3:7] = quaternions / np.linalg.norm(quaternions, axis=1, keepdims=True)
    return np.stack([_perturb(state, rng) for state in states])


def _rollouts(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Rollouts of random actions from library poses and from initial states; most of them fall."""
    model = plain_model()
    data = mujoco.MjData(model)
    states: list[NDArray[np.float64]] = []
    while len(states) < count:
        mujoco.mj_resetData(model, data)
        data.qpos[:] = (
            _perturb(_library_pose(rng), rng) if rng.random() < 0.6 else model.qpos0 + rng.uniform(-0.01, 0.01, 24)
        )
        data.qvel[:] = rng.normal(0, rng.choice([0.02, 0.5]), model.nv)
        strength = rng.choice([0.0, 0.4, 0.4])
        for _ in range(24):
            data.ctrl[:] = strength * rng.uniform(-1, 1, model.nu)
            mujoco.mj_step(model, data, nstep=15)
            if not np.isfinite(data.qpos).all() or np.abs(data.qpos[:2]).max() > 1.5 or data.qpos[2] > 2.5:
                break  # outside the frame
            states.append(data.qpos.copy())
    return np.stack(states[:count])
