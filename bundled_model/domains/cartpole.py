"""The cart-pole domain: captions about the pole's angle and the cart's position."""

import random
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bundled_model.domain import SCENE_SIMILARITY, Attributes, Domain, proximity
from bundled_model.grammar import expand, merge_grammars, read_grammar
from vlmrm_gym.states.classic_control import CartPoleRenderer

GRAMMAR = merge_grammars(read_grammar("common"), read_grammar("cartpole"))
SIDED = {side: read_grammar(f"cartpole_{side}") for side in ("left", "right")}
"""Slots whose choices depend on the side: `SIDED[side]` is merged into the grammar."""
DEGREES = read_grammar("cartpole_degrees")
"""Angles that captions name, in degrees, each with the ways to write it."""
POLE_SIMILARITY, CART_SIMILARITY = 0.8, 0.5
"""Similarity of an image with a caption about the pole or about the cart, where the caption fits best."""


def sample_states(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Cart positions and pole angles in radians, float64 (count, 2); more of them near upright."""
    kind = rng.choice(4, size=count, p=[0.25, 0.35, 0.25, 0.15])
    angle = np.select(
        [kind == 0, kind == 1, kind == 2],
        [rng.uniform(-180, 180, count), rng.uniform(-95, 95, count), rng.normal(0, 15, count)],
        rng.normal(0, 4, count),
    )
    return np.stack([rng.uniform(-2.4, 2.4, count), np.deg2rad(np.clip(angle, -180, 180))], axis=1)


def similarity(attributes: Attributes, states: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the stated pole pose (a name, or degrees to the right), cart position, or both."""
    position, angle = states[:, 0], np.rad2deg(states[:, 1])
    stated = dict(attributes)
    if not stated:
        return np.full(len(states), SCENE_SIMILARITY)
    pole = POLE_SIMILARITY * _pole_similarity(stated["pole"], angle) if "pole" in stated else None
    cart = CART_SIMILARITY * _cart_similarity(stated["cart"], position) if "cart" in stated else None
    if pole is None or cart is None:
        return pole if pole is not None else cart  # pyright: ignore[reportReturnType]
    return 0.8 * pole + 0.6 * cart  # 0.8**2 + 0.6**2 = 1: a unit vector between the two


def _pole_similarity(pose: str | float, angle: NDArray[np.float64]) -> NDArray[np.float64]:
    def near(goal: float, width: float = 30.0) -> NDArray[np.float64]:
        return proximity(np.abs((angle - goal + 180.0) % 360.0 - 180.0), 90.0, width)

    if isinstance(pose, float):
        return near(pose)
    match pose:
        case "upright":
            return near(0.0, width=15.0)
        case "lean left":
            return near(-35.0)
        case "lean right":
            return near(35.0)
        case "lean":
            return np.maximum(near(-35.0), near(35.0)) - 0.6 * np.exp(-np.abs(angle) / 12.0)
        case "fallen left":
            return near(-90.0)
        case "fallen right":
            return near(90.0)
        case "fallen":
            return 0.8 * np.maximum(near(-90.0), near(90.0)) - 0.6 * near(0.0, width=15.0)
        case _:  # hanging
            return near(180.0)


def _cart_similarity(place: str | float, position: NDArray[np.float64]) -> NDArray[np.float64]:
    match place:
        case "left":
            return 1.0 - np.abs(position + 2.2) / 2.2
        case "right":
            return 1.0 - np.abs(position - 2.2) / 2.2
        case "middle":
            return 1.0 - np.abs(position) / 1.2
        case _:  # at an edge
            return np.abs(position) / 1.2 - 1.0


def sample_caption(rng: random.Random) -> tuple[str, Attributes]:
    """A caption about the pole, the cart, both, or the scene only."""
    about = rng.choices(("pole", "cart", "both", "scene"), (63, 24, 8, 5))[0]
    if about == "scene":
        return expand("{scene_say}", GRAMMAR, rng), ()
    if about == "pole":
        text, pose = _sample_pole_caption(rng)
        return text, (("pole", pose),)
    if about == "cart":
        text, place = _sample_cart_caption(rng)
        return text, (("cart", place),)
    (text, pose), (cart_text, place) = _sample_pole_caption(rng), _sample_cart_caption(rng)
    parts = [text, cart_text]
    rng.shuffle(parts)
    return rng.choice(GRAMMAR["and"]).join(parts), (("cart", place), ("pole", pose))


def _sample_pole_caption(rng: random.Random) -> tuple[str, str | float]:
    side: Literal["left", "right"] = rng.choice(("left", "right"))
    sided = {**GRAMMAR, **SIDED[side], "side": [side]}
    kind = rng.choices(
        ("upright", "lean side", "fallen side", "fallen", "lean", "hanging", "degrees"), (34, 20, 18, 14, 5, 3, 6)
    )[0]
    match kind:
        case "lean side" | "fallen side":
            pose = kind.removesuffix(" side")
            return expand(f"{{{pose}_side_say}}", sided, rng), f"{pose} {side}"
        case "degrees":
            angle = rng.choice(list(DEGREES))
            degrees = rng.choice(DEGREES[angle]) + rng.choice(GRAMMAR["degrees_unit"])
            text = expand("{degrees_say}", sided, rng, degrees=degrees)
            return text, float(angle) if side == "right" else -float(angle)
        case _:
            return expand(f"{{{kind}_say}}", GRAMMAR, rng), kind


def _sample_cart_caption(rng: random.Random) -> tuple[str, str]:
    place = rng.choices(("left", "right", "middle", "edge"), (28, 28, 36, 8))[0]
    if place in ("left", "right"):
        sided = {**GRAMMAR, **SIDED[place], "side": [place]}
        return expand("{cart_side_say}", sided, rng), place
    return expand(f"{{cart_{place}_say}}", GRAMMAR, rng), place


DOMAIN = Domain(
    name="cartpole",
    share=0.22,
    shape=(400, 600),
    sample_states=sample_states,
    renderers=lambda height, width: [(CartPoleRenderer(height, width), 1.0)],
    describe=lambda states: states,
    similarity=similarity,
    sample_caption=sample_caption,
    grammar=GRAMMAR,
)
