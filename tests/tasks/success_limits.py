"""Finds states at the limits of the success criteria, one pair for each condition; writes them to success_limits.json.

    python tests/tasks/success_limits.py

Each pair has one state in which all conditions hold, and one in which exactly one fails; the number that this condition
measures is 3% of its limit away from it in both. Where no state within the joints' limits was found, as for hands that
cross behind the chest, joints bend further. The states are data, not computed by the tests, because
a search in the tests would follow a limit that has been changed by mistake.
"""

import json
from pathlib import Path
from unittest import mock

import mujoco
import numpy as np

from vlmrm_gym.tasks import humanoid_success
from vlmrm_gym.tasks.humanoid_body import Body, plain_model
from vlmrm_gym.tasks.humanoid_poses import orientation, pose

FILE = Path(__file__).with_suffix(".json")

STARTS = {
    "kneel": [("kneel", "loose"), ("kneel on heels", "down"), ("kneel, knees apart", "on hips")],
    "lotus": [("lotus", "loose"), ("lotus, upright", "forward")],
    "stand": [("stand", "loose"), ("stand, knees bent", "forward")],
    "arms-raised": [("stand", "raised"), ("stand wide", "raised, elbows bent")],
    "splits": [("splits", "loose"), ("splits, leaning", "forward")],
    "hands-on-hips": [("stand", "on hips"), ("stand, knees bent", "on hips")],
    "arms-crossed": [("stand", "crossed"), ("stand, knees bent", "crossed, left over right")],
    "one-leg": [("one leg, left lifted", "loose"), ("one leg, right behind", "out"), ("one leg, left aside", "loose")],
}
DISTANCE, REST = 0.03, 0.005
"""From the limit that is crossed, as a share of it, and from the others at the least."""


def shares(task, states):
    """How far each measured number is on the right side of its limit, as a share of the limit: (conditions, N)."""
    with (
        mock.patch.object(humanoid_success, "at_least", lambda value, limit, unit: (value - limit) / abs(limit)),
        mock.patch.object(humanoid_success, "at_most", lambda value, limit, unit: (limit - value) / abs(limit)),
    ):
        return np.stack(list(humanoid_success.SUCCESS_CRITERIA[task](Body(states)).values()))


def neighbours(state, rng, stiff, number=64):
    """States that differ from one by a little in some joints, in the tilt or in the height: (number, 24)."""
    low, high = plain_model().jnt_range[1:].T if stiff else (-np.pi, np.pi)
    found = np.repeat(state[None], number, axis=0)
    moved = rng.random((number, 17)) < rng.choice([0.1, 0.3, 0.6], size=(number, 1))
    found[:, 7:] = np.clip(found[:, 7:] + 0.05 * moved * rng.normal(size=(number, 17)), low, high)
    for one in found:
        tilt = np.empty(4)
        mujoco.mju_mulQuat(tilt, orientation(0, *(2 * rng.normal(size=2))), one[3:7])
        one[3:7] = tilt
        height = max(0.0, rng.choice([0, 1]) * (Body(state[None]).lowest()[0] + 0.01 * rng.normal()))
        one[2] += height - Body(one[None]).lowest()[0]
    return found


def walk(task, condition, rng, stiff, steps=150):
    """States from one that passes towards the other side of one limit, no other limit being crossed: (N, 24)."""
    path = [pose(*STARTS[task][rng.integers(len(STARTS[task]))])]
    for _ in range(steps):
        candidates = neighbours(path[-1], rng, stiff)
        values = shares(task, candidates)
        near = np.delete(values, condition, axis=0).min(axis=0) < 2 * REST
        path.append(candidates[np.where(near, np.inf, values[condition]).argmin()])
        if near.all() or values[condition][~near].min() < -DISTANCE:
            break
    return np.array(path)


def at_distance(task, path, condition, distance):
    """The first state of a walk whose number is at a distance from its limit; None if others' limits are nearer."""
    passed = np.flatnonzero(shares(task, path)[condition] <= distance)
    if not len(passed):
        return None
    one, other = path[max(0, passed[0] - 1)], path[passed[0]]
    for _ in range(30):
        middle = (one + other) / 2
        one, other = (middle, other) if shares(task, middle[None])[condition, 0] > distance else (one, middle)
    found = shares(task, other[None].round(6))[:, 0]
    alone = np.delete(found, condition).min() > REST and abs(found[condition] - distance) < DISTANCE / 3
    return other.round(6) if alone else None


def search(task, condition, tries=24):
    """A state on either side of a limit, or None."""
    rng = np.random.default_rng(condition)
    for number in range(tries):
        path = walk(task, condition, rng, stiff=number < tries // 2)
        pair = [at_distance(task, path, condition, distance) for distance in (DISTANCE, -DISTANCE)]
        if all(state is not None for state in pair):
            return pair
    return None


def main():
    rows = []
    for task, criterion in humanoid_success.SUCCESS_CRITERIA.items():
        for number, name in enumerate(criterion(Body(pose()[None]))):
            pair = search(task, number)
            if pair is None:
                print(f"{task}: no state found where '{name}' alone fails")
                continue
            rows.append({"task": task, "condition": name, "holds": pair[0].tolist(), "fails": pair[1].tolist()})
    FILE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
