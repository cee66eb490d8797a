"""The humanoid: its posture, and what its arms do."""

import random
from collections.abc import Callable, Iterable, Mapping

import mujoco
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.envs import humanoid_judges as judges
from vlmrm_gym.envs.humanoid_body import SIDES, XML, Body, plain_model
from vlmrm_gym.envs.humanoid_judges import BENT, TOUCH, Margins, at_least, at_most, closeness, upright
from vlmrm_gym.envs.humanoid_look import textured_model
from vlmrm_gym.envs.humanoid_poses import ARMS, LEGS, on_floor, orientation, pose
from vlmrm_gym.rendering import Quality
from vlmrm_gym.rendering.mujoco import MuJoCoRenderer
from vlmrm_gym.tasks import PAPER_CAMERA
from vlmrm_gym.tiny.words import common
from vlmrm_gym.tiny.words import humanoid as words
from vlmrm_gym.tiny.world import SCENE_SHARE, Says, World, expand, joined

GRAMMAR = joined({slot: common.GRAMMAR[slot] for slot in common.GRAMMAR if slot != "is"}, words.GRAMMAR)
BODY_SHARE = 0.85
"""How much of an image's unit vector tells of posture and arms."""


def sit(body: Body) -> Margins:
    """Seated, legs ahead."""
    margins = [upright(body, 50), at_most(body.clearance("butt"), TOUCH, 0.2)]
    for side in ("left", "right"):
        leg = body.point(f"{side}_foot") - body.point("butt")
        margins += [at_least(body.ahead(leg), 0.45, 0.3), at_most(np.abs(body.leftward(leg)), 0.35, 0.2)]
    return margins


def crouch(body: Body) -> Margins:
    """Low on its feet, knees bent."""
    knees = np.minimum(body.origin("left_shin")[:, 2], body.origin("right_shin")[:, 2])
    return [
        upright(body, 60),
        at_most(body.point("butt")[:, 2], 0.6, 0.2),
        at_least(body.clearance("butt"), 0.06, 0.1),
        at_least(knees, 0.2, 0.1),
        at_most(body.clearance("left_foot"), 2 * TOUCH, 0.2),
        at_most(body.clearance("right_foot"), 2 * TOUCH, 0.2),
    ]


def bend(body: Body) -> Margins:
    """On its feet, torso bent forward."""
    return [
        at_least(body.point("butt")[:, 2], 0.65, 0.3),
        at_most(body.clearance("left_foot", "right_foot"), TOUCH, 0.2),
        at_most(body.up(), 0.6, 0.4),
        at_most(body.direction("torso", 0)[:, 2], -0.5, 0.4),
    ]


def lie(body: Body) -> Margins:
    """Stretched out on the floor."""
    return [
        at_most(body.point("torso1")[:, 2], 0.3, 0.3),
        at_most(body.point("butt")[:, 2], 0.28, 0.3),
        at_most(np.abs(body.up()), 0.4, 0.4),
    ]


def lie_back(body: Body) -> Margins:
    """On its back."""
    return [*lie(body), at_least(body.direction("torso", 0)[:, 2], 0.7, 0.5)]


def lie_front(body: Body) -> Margins:
    """On its belly."""
    return [*lie(body), at_most(body.direction("torso", 0)[:, 2], -0.7, 0.5)]


def all_fours(body: Body) -> Margins:
    """On hands and knees."""
    knees = np.maximum(body.origin("left_shin")[:, 2], body.origin("right_shin")[:, 2])
    return [
        at_most(body.direction("torso", 0)[:, 2], -0.5, 0.4),
        at_most(np.maximum(body.clearance("left_hand"), body.clearance("right_hand")), 0.1, 0.2),
        at_most(knees - BENT, 2 * TOUCH, 0.2),
        at_least(body.point("butt")[:, 2], 0.3, 0.2),
    ]


def arms_down(body: Body) -> Margins:
    """Hands beside the thighs."""
    margins = []
    for side, sign in SIDES:
        _, left, above = body.seen_from_torso(f"{side}_hand")
        margins += [at_most(above, -0.35, 0.2), at_most(np.abs(sign * left - 0.3), 0.15, 0.2)]
    return margins


def arms_out(body: Body) -> Margins:
    """Arms stretched to the sides."""
    margins = []
    for side, sign in SIDES:
        _, left, above = body.seen_from_torso(f"{side}_hand")
        margins += [at_least(sign * left, 0.6, 0.2), at_most(np.abs(above - 0.06), 0.25, 0.2)]
    return margins


def arms_forward(body: Body) -> Margins:
    """Arms stretched ahead."""
    margins = []
    for side, sign in SIDES:
        ahead, left, above = body.seen_from_torso(f"{side}_hand")
        margins += [
            at_least(ahead, 0.42, 0.15),
            at_most(np.abs(sign * left - 0.17), 0.2, 0.2),
            at_most(np.abs(above - 0.06), 0.25, 0.2),
        ]
    return margins


POSTURES: Mapping[str, Callable[[Body], Margins]] = {
    "stand": judges.stand, "kneel": judges.kneel, "lotus": judges.lotus, "splits": judges.splits,
    "one_leg": judges.one_leg, "sit": sit, "crouch": crouch, "bend": bend, "lie": lie, "lie_back": lie_back,
    "lie_front": lie_front, "all_fours": all_fours,
}  # fmt: skip
ARM_POSES: Mapping[str, Callable[[Body], Margins]] = {
    "raised": judges.hands_up, "hips": judges.hands_at_hips, "crossed": judges.forearms_crossed,
    "down": arms_down, "out": arms_out, "forward": arms_forward,
}  # fmt: skip


def describe(states: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """How close states are to every posture and to every pose of the arms: (N,) each, from 0 to 1."""
    body = Body(states)
    return {name: closeness(margins(body)) for name, margins in {**POSTURES, **ARM_POSES}.items()}


def similarity(says: Says, close: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Posture and arms; arms that are named alone are meant standing, but count in any posture."""
    said = {aspect: close[str(value)] for aspect, value in says}
    if not said:
        return np.full(len(close["stand"]), SCENE_SHARE)
    if "arms" not in said:
        return BODY_SHARE * said["posture"]
    if "posture" in said:
        return BODY_SHARE * said["posture"] * (0.4 + 0.6 * said["arms"])
    return BODY_SHARE * (0.2 * close["stand"] + 0.8 * said["arms"] * (0.5 + 0.5 * close["stand"]))


def sample_states(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """States around the library's poses, between them, along random actions and falls, and of any kind: (count, 24)."""
    shares = {_around_poses: 0.5, _between_poses: 0.12, _rollouts: 0.26}
    parts = [sample(int(share * count), rng) for sample, share in shares.items()]
    parts.append(_anything(count - sum(map(len, parts)), rng))
    return rng.permutation(np.concatenate(parts))


# How often poses are drawn: those of the tasks most. By the first word of their names.
_LEGS = {"stand": 5.0, "kneel": 3.0, "lotus": 4.0, "splits": 5.0, "one": 1.2}
_ARMS = {"raised": 2.0, "on": 3.0, "crossed": 2.5, "loose": 2.0}


def _choose(names: Iterable[str], weights: Mapping[str, float], rng: np.random.Generator) -> str:
    every = list(names)
    odds = np.array([weights.get(name.replace(",", "").split()[0], 0.75) for name in every])
    return str(rng.choice(every, p=odds / odds.sum()))


def _library_pose(rng: np.random.Generator) -> NDArray[np.float64]:
    return pose(_choose(LEGS, _LEGS, rng), _choose(ARMS, _ARMS, rng))


def _shake(qpos: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Another state like this one: joints a bit off, turned, tilted, moved, sometimes in the air."""
    shaken = qpos.copy()
    shaken[7:] += rng.normal(0, np.deg2rad(rng.choice([2, 5, 10])), 17)
    limits = plain_model().jnt_range[1:]
    shaken[7:] = np.clip(shaken[7:], limits[:, 0], limits[:, 1])
    yaw = rng.normal(0, 25) if rng.random() < 0.75 else rng.uniform(-180, 180)
    tilt = rng.normal(0, rng.choice([2, 6]), 2)
    turned = np.empty(4)
    mujoco.mju_mulQuat(turned, orientation(yaw, *tilt), qpos[3:7])
    shaken[3:7] = turned
    shaken = on_floor(shaken)
    shaken[:2] = rng.normal(0, 0.2, 2)
    shaken[2] += rng.uniform(0, 0.4) if rng.random() < 0.12 else rng.normal(0, 0.01)
    return shaken


def _around_poses(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return np.stack([_shake(_library_pose(rng), rng) for _ in range(count)])


def _between_poses(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    states = []
    for _ in range(count):
        start, end, part = _library_pose(rng), _library_pose(rng), rng.random()
        between = (1 - part) * start + part * end
        between[3:7] /= np.linalg.norm(between[3:7]) or 1.0
        states.append(_shake(between, rng))
    return np.stack(states)


def _anything(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    limits = plain_model().jnt_range[1:]
    states = np.zeros((count, plain_model().nq))
    states[:, 7:] = rng.uniform(limits[:, 0], limits[:, 1], (count, 17))
    quaternions = rng.normal(0, 1, (count, 4))
    quaternions[rng.random(count) < 0.5, 0] += 4.0  # more or less upright
    states[:, 3:7] = quaternions / np.linalg.norm(quaternions, axis=1, keepdims=True)
    return np.stack([_shake(state, rng) for state in states])


def _rollouts(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Along random actions, from library poses and from where episodes start: mostly falls."""
    model = plain_model()
    data = mujoco.MjData(model)
    states: list[NDArray[np.float64]] = []
    while len(states) < count:
        mujoco.mj_resetData(model, data)
        data.qpos[:] = (
            _shake(_library_pose(rng), rng) if rng.random() < 0.6 else model.qpos0 + rng.uniform(-0.01, 0.01, 24)
        )
        data.qvel[:] = rng.normal(0, rng.choice([0.02, 0.5]), model.nv)
        strength = rng.choice([0.0, 0.4, 0.4])
        for _ in range(24):
            data.ctrl[:] = strength * rng.uniform(-1, 1, model.nu)
            mujoco.mj_step(model, data, nstep=15)
            if not np.isfinite(data.qpos).all() or np.abs(data.qpos[:2]).max() > 1.5 or data.qpos[2] > 2.5:
                break  # out of the picture
            states.append(data.qpos.copy())
    return np.stack(states[:count])


def looks(height: int, width: int) -> list[tuple[MuJoCoRenderer, float]]:
    """Textured and plain, seen by the paper's camera; mostly in the fast quality that is the default."""
    return [
        (MuJoCoRenderer(model, height, width, camera=PAPER_CAMERA, quality=quality), share)
        for model in (textured_model(str(XML)), plain_model())
        for quality, share in QUALITY_SHARES.items()
    ]


QUALITY_SHARES: Mapping[Quality, float] = {"fast": 0.46, "faithful": 0.04}
"""Of the pictures of each look; a faithful one takes ten times as long."""
_COMBINED = ("stand", "stand", "stand", "kneel", "lotus", "splits", "one_leg", "sit")
"""Postures that captions combine with arms; others say where the hands are."""


def say(rng: random.Random) -> tuple[str, Says]:
    """Something about posture, arms, both, or the scene."""
    about = rng.choices(("posture", "arms", "both", "scene"), (56, 20, 19, 5))[0]
    if about == "scene":
        return expand("{scene_say}", GRAMMAR, rng), ()
    arms = rng.choices(tuple(ARM_POSES), (24, 24, 24, 10, 10, 8))[0]
    if about == "arms":
        return expand(f"{{{arms}_say}}", GRAMMAR, rng), (("arms", arms),)
    if about == "both":
        posture = rng.choice(_COMBINED)
        if posture == "stand" and arms in ("raised", "hips", "crossed") and rng.random() < 0.6:
            text = expand(f"{{stand_{arms}_say}}", GRAMMAR, rng)
        else:
            text = expand(f"{{{posture}_say}}" + rng.choice((" ", " ", ", ")) + f"{{{arms}_with}}", GRAMMAR, rng)
        return text, (("arms", arms), ("posture", posture))
    posture = rng.choices(tuple(POSTURES), (16, 14, 14, 14, 14, 6, 5, 5, 4, 4, 4, 3))[0]
    return expand(f"{{{posture}_say}}", GRAMMAR, rng), (("posture", posture),)


WORLD = World(
    name="humanoid",
    share=0.62,
    shape=(480, 480),
    sample_states=sample_states,
    looks=looks,
    describe=describe,
    similarity=similarity,
    say=say,
    grammar=GRAMMAR,
)
