"""The humanoid domain: captions about its posture and its arms."""

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bundled_model.domain import SCENE_SIMILARITY, Attributes, Domain
from bundled_model.domains.humanoid_states import sample_states
from bundled_model.grammar import expand, merge_grammars, read_grammar
from vlmrm_gym.states import Quality
from vlmrm_gym.states.cameras import PAPER_CAMERA
from vlmrm_gym.states.mujoco import MuJoCoRenderer
from vlmrm_gym.tasks import humanoid_success as criteria
from vlmrm_gym.tasks.humanoid import textured_model
from vlmrm_gym.tasks.humanoid_body import SIDES, Body, plain_model
from vlmrm_gym.tasks.humanoid_success import KNEE_RADIUS, TOUCH, at_least, at_most, soft_success, upright
from vlmrm_gym.tasks.known_states import Numbers, worst_margin

GRAMMAR = merge_grammars(
    {slot: choices for slot, choices in read_grammar("common").items() if slot != "is"}, read_grammar("humanoid")
)
DENIED = read_grammar("humanoid_denied")
"""What captions deny, by the name of a posture or a pose of the arms."""
WITHOUT = read_grammar("humanoid_without")
"""What follows "without", by the name of a pose of the arms."""
BODY_SIMILARITY = 0.85
"""Similarity of an image with a caption about posture or arms, where the caption is true."""
DENIED_SIMILARITY = 0.5
"""Similarity of an image with a caption that only denies a posture or a pose of the arms, where that is far off."""

Margins = Sequence[Numbers]
"""Margins of conditions, as in `humanoid_success`, without names."""


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
        at_most(knees - KNEE_RADIUS, 2 * TOUCH, 0.2),
        at_least(body.point("butt")[:, 2], 0.3, 0.2),
    ]


def arms_down(body: Body) -> Margins:
    """Hands beside the thighs."""
    margins: list[Numbers] = []
    for side, sign in SIDES:
        _, left, above = body.torso_coordinates(f"{side}_hand")
        margins += [at_most(above, -0.35, 0.2), at_most(np.abs(sign * left - 0.3), 0.15, 0.2)]
    return margins


def arms_out(body: Body) -> Margins:
    """Arms stretched to the sides."""
    margins: list[Numbers] = []
    for side, sign in SIDES:
        _, left, above = body.torso_coordinates(f"{side}_hand")
        margins += [at_least(sign * left, 0.6, 0.2), at_most(np.abs(above - 0.06), 0.25, 0.2)]
    return margins


def arms_forward(body: Body) -> Margins:
    """Arms stretched ahead."""
    margins: list[Numbers] = []
    for side, sign in SIDES:
        ahead, left, above = body.torso_coordinates(f"{side}_hand")
        margins += [
            at_least(ahead, 0.42, 0.15),
            at_most(np.abs(sign * left - 0.17), 0.2, 0.2),
            at_most(np.abs(above - 0.06), 0.25, 0.2),
        ]
    return margins


def _unnamed(criterion: Callable[[Body], criteria.Margins]) -> Callable[[Body], Margins]:
    return lambda body: list(criterion(body).values())


POSTURES: Mapping[str, Callable[[Body], Margins]] = {
    "stand": _unnamed(criteria.stand), "kneel": _unnamed(criteria.kneel), "lotus": _unnamed(criteria.lotus),
    "splits": _unnamed(criteria.splits), "one_leg": _unnamed(criteria.one_leg), "sit": sit, "crouch": crouch,
    "bend": bend, "lie": lie, "lie_back": lie_back, "lie_front": lie_front, "all_fours": all_fours,
}  # fmt: skip
ARM_POSES: Mapping[str, Callable[[Body], Margins]] = {
    "raised": _unnamed(criteria.hands_up), "hips": _unnamed(criteria.hands_at_hips),
    "crossed": _unnamed(criteria.forearms_crossed),
    "down": arms_down, "out": arms_out, "forward": arms_forward,
}  # fmt: skip


FAILURE_GAP = 0.25
"""Fraction of its grade that a state loses by failing a condition by half a unit of its margin, or by more."""


def grade(margins: Margins) -> NDArray[np.float64]:
    """`soft_success` with a gap between success and failure: float64 (N,).

    1 for a success, at most 0.56 for a state that fails a condition by half a unit of its margin or more.
    """
    worst = np.maximum(0.0, -worst_margin(margins))
    return soft_success(margins) * (1 - FAILURE_GAP * np.minimum(1.0, worst / 0.5))


def describe(states: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """How well states, float64 (N, 24), satisfy every posture and every pose of the arms: float64 (N,) each, 0 to 1."""
    body = Body(states)
    return {name: grade(margins(body)) for name, margins in {**POSTURES, **ARM_POSES}.items()}


def similarity(attributes: Attributes, scores: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Of the stated posture, arms, or both. Arms stated alone imply standing, but count in any posture.

    "not" before the name of a posture or a pose of the arms denies it.
    """
    stated = {attribute: _score(str(value), scores) for attribute, value in attributes}
    if not stated:
        return np.full(len(scores["stand"]), SCENE_SIMILARITY)
    if len(stated) == 1 and str(attributes[0][1]).startswith("not "):
        return DENIED_SIMILARITY * next(iter(stated.values()))
    if "arms" not in stated:
        return BODY_SIMILARITY * stated["posture"]
    if "posture" in stated:
        return BODY_SIMILARITY * stated["posture"] * (0.3 + 0.7 * stated["arms"])
    return BODY_SIMILARITY * (0.2 * scores["stand"] + 0.8 * stated["arms"] * (0.5 + 0.5 * scores["stand"]))


def _score(value: str, scores: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    denied = value.removeprefix("not ")
    return scores[value] if denied == value else 1.0 - scores[denied]


SHAPE = (480, 480)
"""Height and width of the environment's own frames, in pixels."""
LOOKS = ("textured", "plain")
"""The humanoid of this package, and Gymnasium's."""
AZIMUTHS: Mapping[int, float] = {180: 0.34, 90: 0.16, 270: 0.16, 135: 0.13, 225: 0.13, 0: 0.04, 45: 0.02, 315: 0.02}
"""Fraction of images from each azimuth in degrees: front, sides, three quarters, and from behind."""
FAITHFUL_SHARE = 0.04
"""Fraction of images in the quality "faithful", which takes ten times as long to draw; from the front only."""


def renderer(
    height: int, width: int, *, look: str = "textured", azimuth: int = 180, quality: Quality = "fast"
) -> MuJoCoRenderer:
    """A renderer in one of `LOOKS` from the paper's camera, moved to an azimuth in degrees."""
    model = textured_model() if look == "textured" else plain_model()
    return MuJoCoRenderer(model, height, width, camera={**PAPER_CAMERA, "azimuth": azimuth}, quality=quality)


def renderers(height: int, width: int) -> list[tuple[MuJoCoRenderer, float]]:
    """Both looks, from several azimuths, mostly in the default quality "fast"."""
    drawn: list[tuple[MuJoCoRenderer, float]] = []
    for look in LOOKS:
        drawn.append((renderer(height, width, look=look, quality="faithful"), FAITHFUL_SHARE / 2))
        for azimuth, share in AZIMUTHS.items():
            drawn.append((renderer(height, width, look=look, azimuth=azimuth), share * (1 - FAITHFUL_SHARE) / 2))
    return drawn


_COMBINED = ("stand", "stand", "stand", "kneel", "lotus", "splits", "one_leg", "sit")
"""Postures that captions combine with a pose of the arms, by weight; the other postures imply where the hands are."""


def sample_caption(rng: random.Random) -> tuple[str, Attributes]:
    """A caption about posture, arms, both, what is not the case, or the scene only."""
    about = rng.choices(("posture", "arms", "both", "denied", "contrast", "scene"), (45, 17, 17, 4, 12, 5))[0]
    match about:
        case "scene":
            return expand("{scene_say}", GRAMMAR, rng), ()
        case "denied":
            return _sample_denial(rng)
        case "contrast":
            return _sample_contrast(rng)
        case "posture":
            posture = rng.choices(tuple(POSTURES), (18, 14, 14, 14, 14, 6, 5, 5, 4, 4, 4, 3))[0]
            return expand(f"{{{posture}_say}}", GRAMMAR, rng), (("posture", posture),)
    arms = rng.choices(tuple(ARM_POSES), (24, 24, 24, 10, 10, 8))[0]
    if about == "arms":
        return expand(f"{{{arms}_say}}", GRAMMAR, rng), (("arms", arms),)
    posture = rng.choice(_COMBINED)
    if posture == "stand" and arms in ("raised", "hips", "crossed") and rng.random() < 0.6:
        text = expand(f"{{stand_{arms}_say}}", GRAMMAR, rng)
    else:
        text = expand(f"{{{posture}_say}}" + rng.choice((" ", " ", ", ")) + f"{{{arms}_with}}", GRAMMAR, rng)
    return text, (("arms", arms), ("posture", posture))


def _sample_denial(rng: random.Random) -> tuple[str, Attributes]:
    """A caption that denies a posture or a pose of the arms; of the latter, half say that the robot stands."""
    if rng.random() < 0.35:
        arms = rng.choice(tuple(WITHOUT))
        text = expand("{stand_say} {without}", GRAMMAR, rng, no=rng.choice(WITHOUT[arms]))
        return text, (("arms", f"not {arms}"), ("posture", "stand"))
    denied = rng.choice(tuple(DENIED))
    text = expand("{denied_say}", {**GRAMMAR, "no": DENIED[denied]}, rng)
    return text, (("arms" if denied in ARM_POSES else "posture", f"not {denied}"),)


def _sample_contrast(rng: random.Random) -> tuple[str, Attributes]:
    """A caption that states a posture, a pose of the arms or both, and denies another: the label is what it states."""
    stated = rng.choices(("stand", "raised", "hips", "crossed", "other"), (40, 15, 15, 15, 15))[0]
    if stated in ARM_POSES:
        text, attributes = expand(f"{{stand_{stated}_say}}", GRAMMAR, rng), (("arms", stated), ("posture", "stand"))
    else:
        stated = rng.choice(("kneel", "lotus", "splits", "one_leg", "sit", "lie")) if stated == "other" else stated
        text, attributes = expand(f"{{{stated}_say}}", GRAMMAR, rng), (("posture", stated),)
    if rng.random() < 0.3:
        return expand("{x} {harmless}", GRAMMAR, rng, x=text), attributes
    others = [name for name in DENIED if name not in (stated, "stand")]
    others = [name for name in others if (stated, name) not in (("lotus", "sit"), ("splits", "sit"))]
    denied = expand("{no}", {**GRAMMAR, "no": DENIED[rng.choice(others)]}, rng)
    return expand("{contrast}", GRAMMAR, rng, x=text, no=denied), attributes


DOMAIN = Domain(
    name="humanoid",
    share=0.62,
    shape=SHAPE,
    sample_states=sample_states,
    renderers=renderers,
    describe=describe,
    similarity=similarity,
    sample_caption=sample_caption,
    grammar=GRAMMAR,
)
