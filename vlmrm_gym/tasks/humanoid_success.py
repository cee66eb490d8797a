"""Success criteria of the humanoid tasks, after VLM-RM's Table 2.

A criterion is a set of named conditions, each a *margin*: by how much a measured number is on the right side of its
threshold, in units of a typical deviation. A state is a success if all margins are at least 0; `soft_success` grades
states that are not. Positions come from `qpos` alone. "On the floor" is a clearance of at most `TOUCH`, since MuJoCo's
contacts are soft and a held pose trembles.
"""

from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.tasks.humanoid_body import SIDES, Body
from vlmrm_gym.tasks.known_states import Numbers, worst_margin

TOUCH = 0.04
"""Maximum clearance, in metres, that counts as touching the floor."""
KNEE_RADIUS = 0.05
"""Radius of a knee in metres: the height of its centre when it lies on the floor."""

Margins = dict[str, Numbers]
"""Margins by the name of their condition."""


def at_least(value: Numbers, limit: float, unit: float) -> Numbers:
    """Margin of the condition `value >= limit`."""
    return (value - limit) / unit


def at_most(value: Numbers, limit: float, unit: float) -> Numbers:
    """Margin of the condition `value <= limit`."""
    return (limit - value) / unit


def upright(body: Body, degrees: float) -> Numbers:
    """The torso leans at most this many degrees from the vertical."""
    return at_least(body.up(), np.cos(np.deg2rad(degrees)), 0.4)


def stand(body: Body) -> Margins:
    """On its feet, torso upright, legs nearly straight: the pelvis is 0.9 m up when they are straight."""
    return {
        "torso upright": upright(body, 30),
        "pelvis at standing height": at_least(body.point("butt")[:, 2], 0.7, 0.3),
        "a foot on the floor": at_most(body.clearance("left_foot", "right_foot"), TOUCH, 0.2),
    }


def kneel(body: Body) -> Margins:
    """Both knees on the floor, feet behind them, body up and off the ground (sitting on the heels is kneeling too)."""
    margins = {
        "torso upright": upright(body, 45),
        "pelvis off the floor": at_least(body.point("butt")[:, 2], 0.22, 0.2),  # sitting on the heels: 0.25 m
        "hands off the floor": at_least(body.clearance("left_hand", "right_hand"), 0.06, 0.1),
    }
    for side in ("left", "right"):
        knee, foot = body.origin(f"{side}_shin"), body.point(f"{side}_foot")
        margins |= {
            f"{side} knee on the floor": at_most(knee[:, 2] - KNEE_RADIUS, TOUCH, 0.2),
            f"{side} foot behind its knee": at_most(body.ahead(foot - knee), -0.1, 0.3),  # a shin is 0.35 m long
        }
    return margins


def lotus(body: Body) -> Margins:
    """Seated upright, knees low and turned outwards, feet drawn in.

    The hips do not turn far enough to lay the shins flat, so the robot sits on folded legs, its pelvis 0.13 m up.
    """
    margins = {"torso upright": upright(body, 40), "seated": at_most(body.clearance("butt"), 0.18, 0.2)}
    for side, sign in SIDES:
        knee, foot, pelvis = body.origin(f"{side}_shin"), body.point(f"{side}_foot"), body.point("butt")
        outwards = sign * body.leftward(knee - pelvis)  # hips are 0.1 m off the middle, thighs 0.4 m long
        margins |= {
            f"{side} knee low": at_most(knee[:, 2] - KNEE_RADIUS, 0.2, 0.2),
            f"{side} knee turned outwards": at_least(outwards, 0.28, 0.2),
            f"{side} foot near the middle": at_most(np.abs(body.leftward(foot - pelvis)), 0.22, 0.2),
            f"{side} foot drawn in": at_most(np.linalg.norm((foot - pelvis)[:, :2], axis=1), 0.5, 0.2),
        }
    return margins


def splits(body: Body) -> Margins:
    """Side splits on the floor: pelvis and feet down, legs stretched, far apart to both sides."""
    margins = {"torso upright": upright(body, 60), "pelvis down": at_most(body.clearance("butt"), 0.1, 0.2)}
    for side, sign in SIDES:
        leg = body.point(f"{side}_foot") - body.origin(f"{side}_thigh")
        length = np.linalg.norm(leg, axis=1)
        margins |= {
            f"{side} leg stretched": at_least(length, 0.67, 0.2),  # 0.76 m when straight
            f"{side} leg out to the side": at_least(sign * body.leftward(leg) / length, np.cos(np.deg2rad(40)), 0.3),
            f"{side} leg on the floor": at_most(body.clearance(f"{side}_foot", f"{side}_shin1"), 0.1, 0.2),
        }
    return margins


def hands_up(body: Body) -> Margins:
    """Both hands above the head."""
    head = body.point("head")[:, 2]
    return {
        f"{side} hand above the head": at_least(body.point(f"{side}_hand")[:, 2] - head, 0.05, 0.3)
        for side in ("left", "right")
    }


def hands_at_hips(body: Body) -> Margins:
    """Each hand at its side of the waist or pelvis, each elbow further out than its hand."""
    margins = {}
    for side, sign in SIDES:
        hand, elbow = body.point(f"{side}_hand"), body.origin(f"{side}_lower_arm")
        hip = 0.5 * (body.point("lwaist") + body.point("butt")) + sign * 0.15 * body.direction("pelvis", 1)
        margins |= {
            f"{side} hand at the hip": at_most(np.linalg.norm(hand - hip, axis=1), 0.18, 0.15),
            f"{side} elbow further out than its hand": at_least(sign * body.leftward(elbow - hand), 0.05, 0.15),
        }
    return margins


def forearms_crossed(body: Body) -> Margins:
    """Forearms in front of the chest, each hand past the midline, and the forearms close: touching is not crossing."""
    margins = {"forearms close together": at_most(body.forearm_distance(), 0.14, 0.15)}
    for side, sign in SIDES:
        ahead, left, above = body.torso_coordinates(f"{side}_hand")
        margins |= {
            f"{side} hand past the middle": at_most(sign * left, -0.04, 0.15),
            f"{side} hand in front of the chest": at_least(ahead, 0.08, 0.1),
            f"{side} hand at chest height": at_most(np.abs(above), 0.3, 0.15),
        }
    return margins


def one_leg(body: Body) -> Margins:
    """Measure standing on one foot: the other well above the floor, the centre of mass above the supporting foot."""
    heights = np.stack([body.clearance("left_foot"), body.clearance("right_foot")])
    feet = np.stack([body.point("left_foot"), body.point("right_foot")])
    supporting = np.take_along_axis(feet, heights.argmin(0)[None, :, None], axis=0)[0]
    off_balance = np.linalg.norm((body.centre_of_mass - supporting)[:, :2], axis=1)
    return stand(body) | {
        "the other foot lifted": at_least(heights.max(0), 0.15, 0.15),
        "balanced above the supporting foot": at_most(off_balance, 0.2, 0.2),
    }


SUCCESS_CRITERIA: Mapping[str, Callable[[Body], Margins]] = {
    "kneel": kneel,
    "lotus": lotus,
    "stand": stand,
    "arms-raised": lambda body: stand(body) | hands_up(body),
    "splits": splits,
    "hands-on-hips": lambda body: stand(body) | hands_at_hips(body),
    "arms-crossed": lambda body: stand(body) | forearms_crossed(body),
    "one-leg": one_leg,
}
"""The margins of every task, by the name in `VLMRM/Humanoid-<name>-v0`."""


def succeeds(task: str, qpos: ArrayLike) -> NDArray[np.bool_]:
    """Tell whether states, float (N, 24), meet a task's success criterion: bool (N,)."""
    return worst_margin(SUCCESS_CRITERIA[task](Body(qpos)).values()) >= 0


def soft_success(margins: Collection[Numbers]) -> Numbers:
    """Graded success: float64 (N,), 1 if all conditions are met, decreasing to 0 with the sum of the violations."""
    missing = np.maximum(0.0, -np.stack(list(margins)))
    return 0.4 * np.exp(-missing).mean(axis=0) + 0.6 * np.exp(-missing.sum(axis=0))
