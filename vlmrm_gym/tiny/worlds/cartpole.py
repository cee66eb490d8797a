"""Cart-pole: which way the pole points, and where the cart is."""

import random
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rendering.classic_control import CartPoleRenderer
from vlmrm_gym.tiny.words import cartpole as words
from vlmrm_gym.tiny.words import common
from vlmrm_gym.tiny.world import SCENE_SHARE, Says, World, expand, joined, nearness

GRAMMAR = joined(common.GRAMMAR, words.GRAMMAR)
POLE_SHARE, CART_SHARE = 0.8, 0.5
"""How much of an image's unit vector tells of the pole, and of the cart."""


def sample_states(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Cart positions and pole angles (radians): (count, 2)."""
    kind = rng.choice(4, size=count, p=[0.25, 0.35, 0.25, 0.15])
    angle = np.select(
        [kind == 0, kind == 1, kind == 2],
        [rng.uniform(-180, 180, count), rng.uniform(-95, 95, count), rng.normal(0, 15, count)],
        rng.normal(0, 4, count),
    )
    return np.stack([rng.uniform(-2.4, 2.4, count), np.deg2rad(np.clip(angle, -180, 180))], axis=1)


def similarity(says: Says, states: NDArray[np.float64]) -> NDArray[np.float64]:
    """The pole's pose (a name, or degrees to the right) and the cart's place, or one of them."""
    position, angle = states[:, 0], np.rad2deg(states[:, 1])
    said = dict(says)
    if not said:
        return np.full(len(states), SCENE_SHARE)
    pole = POLE_SHARE * _pole_similarity(said["pole"], angle) if "pole" in said else None
    cart = CART_SHARE * _cart_similarity(said["cart"], position) if "cart" in said else None
    if pole is None or cart is None:
        return pole if pole is not None else cart  # pyright: ignore[reportReturnType]
    return 0.8 * pole + 0.6 * cart  # a unit vector between the two


def _pole_similarity(pose: str | float, angle: NDArray[np.float64]) -> NDArray[np.float64]:
    def near(goal: float, width: float = 30.0) -> NDArray[np.float64]:
        return nearness(np.abs((angle - goal + 180.0) % 360.0 - 180.0), 90.0, width)

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


def say(rng: random.Random) -> tuple[str, Says]:
    """Something about the pole, the cart, both, or the scene."""
    about = rng.choices(("pole", "cart", "both", "scene"), (70, 17, 8, 5))[0]
    if about == "scene":
        return expand("{scene_say}", GRAMMAR, rng), ()
    if about == "pole":
        text, pose = _say_pole(rng)
        return text, (("pole", pose),)
    if about == "cart":
        text, place = _say_cart(rng)
        return text, (("cart", place),)
    (text, pose), (cart_text, place) = _say_pole(rng), _say_cart(rng)
    parts = [text, cart_text]
    rng.shuffle(parts)
    return rng.choice(GRAMMAR["and"]).join(parts), (("cart", place), ("pole", pose))


def _say_pole(rng: random.Random) -> tuple[str, str | float]:
    side: Literal["left", "right"] = rng.choice(("left", "right"))
    sided = {**GRAMMAR, **words.SIDED[side], "side": [side]}
    kind = rng.choices(
        ("upright", "lean side", "fallen side", "fallen", "lean", "hanging", "degrees"), (34, 20, 18, 14, 5, 3, 6)
    )[0]
    match kind:
        case "lean side" | "fallen side":
            pose = kind.removesuffix(" side")
            return expand(f"{{{pose}_side_say}}", sided, rng), f"{pose} {side}"
        case "degrees":
            degrees = rng.choice(list(words.DEGREES))
            number = rng.choice((f"{degrees}", f"{degrees}", words.DEGREES[degrees]))
            text = expand("{degrees_say}", sided, rng, degrees=number + rng.choice((" degrees", " degrees", "°")))
            return text, float(degrees if side == "right" else -degrees)
        case _:
            return expand(f"{{{kind}_say}}", GRAMMAR, rng), kind


def _say_cart(rng: random.Random) -> tuple[str, str]:
    place = rng.choices(("left", "right", "middle", "edge"), (30, 30, 30, 10))[0]
    if place in ("left", "right"):
        sided = {**GRAMMAR, **words.SIDED[place], "side": [place]}
        return expand("{cart_side_say}", sided, rng), place
    return expand(f"{{cart_{place}_say}}", GRAMMAR, rng), place


WORLD = World(
    name="cartpole",
    share=0.22,
    shape=(400, 600),
    sample_states=sample_states,
    looks=lambda height, width: [(CartPoleRenderer(height, width), 1.0)],
    describe=lambda states: states,
    similarity=similarity,
    say=say,
    grammar=GRAMMAR,
)
