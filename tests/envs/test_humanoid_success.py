"""The success criteria of the humanoid tasks: poses that pass, and near misses that do not."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmrm_gym.envs.humanoid_body import Body, plain_model
from vlmrm_gym.envs.humanoid_poses import ARMS, LEGS, orientation, pose
from vlmrm_gym.envs.humanoid_success import SUCCESS_CRITERIA, soft_success, succeeds
from vlmrm_gym.tasks import HUMANOID_PROMPTS

PASSING = [
    ("stand", "stand", "loose"),
    ("stand", "stand wide", "down"),
    ("stand", "stand, knees bent", "forward"),
    ("stand", "stand", "raised"),
    ("kneel", "kneel", "loose"),
    ("kneel", "kneel", "raised"),
    ("kneel", "kneel on heels", "down"),
    ("kneel", "kneel, knees apart", "on hips"),
    ("lotus", "lotus", "loose"),
    ("lotus", "lotus, upright", "forward"),
    ("splits", "splits", "loose"),
    ("splits", "splits", "out"),
    ("splits", "splits, leaning", "forward"),
    ("arms-raised", "stand", "raised"),
    ("arms-raised", "stand wide", "raised, elbows bent"),
    ("hands-on-hips", "stand", "on hips"),
    ("hands-on-hips", "stand wide", "on hips"),
    ("arms-crossed", "stand", "crossed"),
    ("arms-crossed", "stand wide", "crossed, left over right"),
    *(("one-leg", legs, arms) for legs in LEGS if legs.startswith("one leg") for arms in ("loose", "out")),
]

NEAR_MISSES = [
    # Not on its feet, or not upright.
    *(
        ("stand", legs, "loose")
        for legs in LEGS
        if legs.startswith(("lie", "lean", "sit", "kneel", "splits", "crouch"))
    ),
    ("stand", "upside down", "loose"),
    ("stand", "bend", "down"),
    # One knee, no knee, knees on the floor but lying or seated, or propped up by the hands.
    ("kneel", "half kneel, left", "loose"),
    ("kneel", "half kneel, right", "loose"),
    ("kneel", "stand", "loose"),
    ("kneel", "sit", "loose"),
    ("kneel", "crouch", "loose"),
    ("kneel", "lie on front", "loose"),
    ("kneel", "all fours", "loose"),
    ("kneel", "splits", "loose"),
    # Seated otherwise.
    ("lotus", "sit", "loose"),
    ("lotus", "sit, knees up", "loose"),
    ("lotus", "sit, legs apart", "loose"),
    ("lotus", "kneel on heels", "loose"),
    ("lotus", "splits", "loose"),
    ("lotus", "crouch", "loose"),
    # Legs not far enough apart, or the robot not on the floor.
    ("splits", "sit, legs apart", "loose"),
    ("splits", "sit", "loose"),
    ("splits", "stand wide", "loose"),
    ("splits", "lotus", "loose"),
    # One arm only, hands at the head, arms to the sides; or not standing.
    ("arms-raised", "stand", "left raised"),
    ("arms-raised", "stand", "right raised"),
    ("arms-raised", "stand", "hands on head"),
    ("arms-raised", "stand", "out"),
    ("arms-raised", "kneel", "raised"),
    ("arms-raised", "lie on back", "raised"),
    # One hand only, hands beside the thighs, behind the back, on the chest; or not standing.
    ("hands-on-hips", "stand", "left on hip"),
    ("hands-on-hips", "stand", "down"),
    ("hands-on-hips", "stand", "behind"),
    ("hands-on-hips", "stand", "hands on chest"),
    ("hands-on-hips", "kneel", "on hips"),
    # Arms that touch but do not cross, that stretch ahead, that rest on the chest; or not standing.
    ("arms-crossed", "stand", "hands together"),
    ("arms-crossed", "stand", "forward"),
    ("arms-crossed", "stand", "hands on chest"),
    ("arms-crossed", "lotus", "crossed"),
    # Both feet, both knees, or half kneeling.
    ("one-leg", "stand", "loose"),
    ("one-leg", "stand wide", "loose"),
    ("one-leg", "kneel", "loose"),
    ("one-leg", "half kneel, left", "loose"),
    ("one-leg", "lean left", "loose"),
]

LIMITS = json.loads((Path(__file__).parent / "success_limits.json").read_text())
"""Pairs of states, one on either side of each limit of each criterion; see success_limits.py."""


def is_success(task, qpos):
    return bool(succeeds(task, qpos[None])[0])


def test_every_task_has_a_criterion_with_passing_and_failing_poses():
    assert set(SUCCESS_CRITERIA) == set(HUMANOID_PROMPTS)
    assert {task for task, _, _ in PASSING} == set(SUCCESS_CRITERIA)
    assert {task for task, _, _ in NEAR_MISSES} == set(SUCCESS_CRITERIA)


@pytest.mark.parametrize(("task", "legs", "arms"), PASSING)
def test_passes(task, legs, arms):
    assert is_success(task, pose(legs, arms))


@pytest.mark.parametrize(("task", "legs", "arms"), NEAR_MISSES)
def test_near_miss_fails(task, legs, arms):
    assert not is_success(task, pose(legs, arms))


@pytest.mark.parametrize(("task", "legs", "arms"), PASSING)
def test_the_same_pose_in_the_air_fails(task, legs, arms):
    """Kneeling, standing ... 20 cm above the floor."""
    qpos = pose(legs, arms)
    qpos[2] += 0.2
    assert not is_success(task, qpos)


@pytest.mark.parametrize(("task", "legs", "arms"), PASSING)
@pytest.mark.parametrize("pitch", [-90, 90])
def test_the_same_pose_fallen_over_fails(task, legs, arms, pitch):
    qpos = pose(legs, arms)
    qpos[3:7] = multiply(orientation(0, pitch, 0), qpos[3:7])
    assert not is_success(task, qpos)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit['task']}: {limit['condition']}")
def test_a_state_fails_if_one_condition_alone_does(limit):
    """Both states are 3% of a limit away from it: moving the limit by more than that changes one of the verdicts."""
    holds, fails = np.array(limit["holds"]), np.array(limit["fails"])
    assert is_success(limit["task"], holds)
    assert not is_success(limit["task"], fails)
    assert sum(margin[0] < 0 for margin in SUCCESS_CRITERIA[limit["task"]](Body(fails[None])).values()) == 1


@pytest.mark.parametrize("task", SUCCESS_CRITERIA)
def test_every_condition_has_states_at_its_limit(task):
    margins = [SUCCESS_CRITERIA[task](Body([limit["fails"]])) for limit in LIMITS if limit["task"] == task]
    violated = [number for own in margins for number, margin in enumerate(own.values()) if margin[0] < 0]
    assert violated == list(range(len(margins[0])))


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(PASSING + NEAR_MISSES), st.floats(-180, 180), st.floats(-3, 3), st.floats(-3, 3))
def test_position_and_heading_do_not_matter(case, yaw, x, y):
    task, legs, arms = case
    qpos = pose(legs, arms, yaw=yaw)
    qpos[:2] = x, y
    assert is_success(task, qpos) == is_success(task, pose(legs, arms))


MIRROR = {"left": "right", "right": "left"}


@pytest.mark.parametrize(("task", "legs", "arms"), PASSING + NEAR_MISSES)
def test_mirrored_poses_have_the_same_success(task, legs, arms):
    assert is_success(task, mirrored(pose(legs, arms))) == is_success(task, pose(legs, arms))


@pytest.mark.parametrize(("task", "legs", "arms"), PASSING + NEAR_MISSES)
def test_soft_success_is_one_exactly_on_success(task, legs, arms):
    qpos = pose(legs, arms)[None]
    close = soft_success(SUCCESS_CRITERIA[task](Body(qpos)).values())[0]
    assert 0 <= close <= 1
    assert (close == 1) == is_success(task, qpos[0])


@pytest.mark.parametrize("legs", LEGS)
@pytest.mark.parametrize("arms", ARMS)
def test_every_pose_of_the_library_is_possible(legs, arms):
    """Its joints are within their limits, and it touches the floor without sinking in."""
    qpos = pose(legs, arms)
    low, high = plain_model().jnt_range[1:].T
    assert (qpos[7:] >= low - 1e-9).all()
    assert (qpos[7:] <= high + 1e-9).all()
    assert Body(qpos[None]).lowest()[0] == pytest.approx(0, abs=1e-9)


def test_positions_equal_mujocos():
    """`Body` agrees with `mj_forward`, which also says what touches the floor."""
    import mujoco

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


@pytest.mark.parametrize("qpos", [np.zeros(24), np.zeros((1, 23)), np.full((1, 24), np.nan)])
def test_bad_states(qpos):
    with pytest.raises(ValueError, match=r"`qpos` must be finite, of shape \(N, 24\)"):
        Body(qpos)


def multiply(first, second):
    import mujoco

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
        if side in MIRROR:
            sign = -1 if joint.startswith("shoulder") else 1
            other[place[f"{MIRROR[side]}_{joint}"]] = sign * qpos[number]
        elif joint in ("x", "z"):
            other[number] = -qpos[number]
    return other
