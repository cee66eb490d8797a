"""The success criteria of the humanoid tasks: poses that pass, and near misses that do not."""

import json
from pathlib import Path

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmrm_gym.tasks import HUMANOID_PROMPTS
from vlmrm_gym.tasks.humanoid_body import Body, plain_model
from vlmrm_gym.tasks.humanoid_poses import ARMS, LEGS, orientation, pose
from vlmrm_gym.tasks.humanoid_success import SUCCESS_CRITERIA, soft_success, succeeds


def legs_that(*beginnings):
    return [legs for legs in LEGS if legs.startswith(beginnings)]


PASSING = {
    "stand": [("stand", "loose"), ("stand wide", "down"), ("stand, knees bent", "forward"), ("stand", "raised")],
    "kneel": [("kneel", "loose"), ("kneel", "raised"), ("kneel on heels", "down"), ("kneel, knees apart", "on hips")],
    "lotus": [("lotus", "loose"), ("lotus, upright", "forward")],
    "splits": [("splits", "loose"), ("splits", "out"), ("splits, leaning", "forward")],
    "arms-raised": [("stand", "raised"), ("stand wide", "raised, elbows bent")],
    "hands-on-hips": [("stand", "on hips"), ("stand wide", "on hips")],
    "arms-crossed": [("stand", "crossed"), ("stand wide", "crossed, left over right")],
    "one-leg": [(legs, arms) for legs in legs_that("one leg") for arms in ("loose", "out")],
}
NEAR_MISSES = {
    "stand": [  # not on its feet, or not upright
        *((legs, "loose") for legs in legs_that("lie", "lean", "sit", "kneel", "splits", "crouch", "upside down")),
        ("bend", "down"),
    ],
    # One knee, no knee, knees on the floor but lying or seated, or propped up by the hands.
    "kneel": [
        (legs, "loose")
        for legs in (*legs_that("half kneel"), "stand", "sit", "crouch", "lie on front", "all fours", "splits")
    ],
    # Seated otherwise.
    "lotus": [(legs, "loose") for legs in (*legs_that("sit"), "kneel on heels", "splits", "crouch")],
    # Legs not far enough apart, or the robot not on the floor.
    "splits": [(legs, "loose") for legs in ("sit, legs apart", "sit", "stand wide", "lotus")],
    # One arm only, hands at the head, arms to the sides; or not standing.
    "arms-raised": [
        *(("stand", arms) for arms in ("left raised", "right raised", "hands on head", "out")),
        *((legs, "raised") for legs in ("kneel", "lie on back")),
    ],
    # One hand only, hands beside the thighs, behind the back, on the chest; or not standing.
    "hands-on-hips": [
        *(("stand", arms) for arms in ("left on hip", "down", "behind", "hands on chest")),
        ("kneel", "on hips"),
    ],
    # Arms that touch but do not cross, that stretch ahead, that rest on the chest; or not standing.
    "arms-crossed": [
        *(("stand", arms) for arms in ("hands together", "forward", "hands on chest")),
        ("lotus", "crossed"),
    ],
    # Both feet, both knees, or half kneeling.
    "one-leg": [(legs, "loose") for legs in ("stand", "stand wide", "kneel", "half kneel, left", "lean left")],
}
CASES = [(task, *names) for poses in (PASSING, NEAR_MISSES) for task in poses for names in poses[task]]

LIMITS = json.loads((Path(__file__).parent / "success_limits.json").read_text())
"""Pairs of states, one on either side of each limit, 3% of it away: data, as a search would follow a changed limit."""


def test_every_task_has_a_criterion_with_passing_and_failing_poses_and_states_at_every_limit():
    assert SUCCESS_CRITERIA.keys() == HUMANOID_PROMPTS.keys() == PASSING.keys() == NEAR_MISSES.keys()
    conditions = [(task, name) for task in SUCCESS_CRITERIA for name in SUCCESS_CRITERIA[task](Body(pose()[None]))]
    assert [(limit["task"], limit["condition"]) for limit in LIMITS] == conditions


@pytest.mark.parametrize("task", SUCCESS_CRITERIA)
def test_poses(task):
    """Passing ones succeed; near misses fail, and poses 20 cm above the floor, on the face and on the back.

    Mirrored ones are the same, and soft success is 1 exactly on success.
    """
    passing, near = (np.stack([pose(*names) for names in poses[task]]) for poses in (PASSING, NEAR_MISSES))
    raised = passing + 0.2 * np.eye(24)[2]
    fallen = np.concatenate([passing, passing])
    for number, state in enumerate(fallen):
        state[3:7] = multiply(orientation(0, -90 if number < len(passing) else 90, 0), state[3:7])
    states = np.concatenate([passing, near, raised, fallen])
    success = [True] * len(passing) + [False] * (len(states) - len(passing))
    assert succeeds(task, states).tolist() == success
    assert succeeds(task, [mirrored(state) for state in states]).tolist() == success
    close = soft_success(SUCCESS_CRITERIA[task](Body(states)).values())
    assert ((close >= 0) & (close <= 1)).all()
    assert (close == 1).tolist() == success


def test_a_state_fails_if_one_condition_alone_does():
    """Both states are 3% of a limit away from it: moving the limit by more than that changes one of the verdicts."""
    for task, condition, holds, fails in (limit.values() for limit in LIMITS):
        assert succeeds(task, [holds, fails]).tolist() == [True, False], (task, condition)
        margins = SUCCESS_CRITERIA[task](Body([fails]))
        assert [name for name, margin in margins.items() if margin[0] < 0] == [condition]


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(CASES), st.floats(-180, 180), st.floats(-3, 3), st.floats(-3, 3))
def test_position_and_heading_do_not_matter(case, yaw, x, y):
    task, legs, arms = case
    qpos = pose(legs, arms, yaw=yaw)
    qpos[:2] = x, y
    assert len(set(succeeds(task, [qpos, pose(legs, arms)]).tolist())) == 1


def test_every_pose_of_the_library_is_possible():
    """Its joints are within their limits, and it touches the floor without sinking in."""
    states = np.stack([pose(legs, arms) for legs in LEGS for arms in ARMS])
    low, high = plain_model().jnt_range[1:].T
    assert (states[:, 7:] >= low - 1e-9).all()
    assert (states[:, 7:] <= high + 1e-9).all()
    np.testing.assert_allclose(Body(states).lowest(), 0, atol=1e-9)


def test_positions_equal_mujocos():
    """`Body` agrees with `mj_forward`, which also says what touches the floor."""
    model = plain_model()
    data = mujoco.MjData(model)
    qpos = pose("kneel", "raised")
    qpos[2] -= 0.005
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    body = Body(qpos[None])
    np.testing.assert_allclose(body.point("left_hand")[0], data.geom("left_hand").xpos)
    np.testing.assert_allclose(body.origin("left_shin")[0], data.body("left_shin").xpos)
    np.testing.assert_allclose(body.centre_of_mass[0], data.subtree_com[1])
    floor = model.geom("floor").id
    touching = {
        model.geom(max(pair.geom1, pair.geom2)).name for pair in data.contact if floor in (pair.geom1, pair.geom2)
    }
    names = [model.geom(i).name for i in range(model.ngeom) if i != floor]
    assert touching == {name for name in names if body.clearance(name)[0] < 0.001}  # the model's contact margin


def test_bad_states():
    for qpos in (np.zeros(24), np.zeros((1, 23)), np.full((1, 24), np.nan)):
        with pytest.raises(ValueError, match=r"`qpos` must be finite, of shape \(N, 24\)"):
            Body(qpos)


def multiply(first, second):
    product = np.empty(4)
    mujoco.mju_mulQuat(product, first, second)
    return product


def mirrored(qpos):
    """Seen in a mirror that stands along the x axis."""
    model, other = plain_model(), qpos.copy()
    other[1] *= -1
    other[[4, 6]] *= -1
    place = {model.joint(i).name: model.jnt_qposadr[i] for i in range(1, model.njnt)}
    for name, number in place.items():
        side, _, joint = name.partition("_")
        if side in ("left", "right"):
            sign = -1 if joint.startswith("shoulder") else 1
            other[place[f"{'right' if side == 'left' else 'left'}_{joint}"]] = sign * qpos[number]
        elif joint in ("x", "z"):
            other[number] = -qpos[number]
    return other
