"""The language the bundled model learns: captions of cart-pole, each with the truth it tells.

A caption is expanded from a small grammar and carries a `Meaning`: which way the pole points, where the cart is. A
meaning is *graded*: `similarity` says how well any state of the simulator fits it, so one caption teaches something
about every picture, and the reward it makes rises all the way to the goal.

Knows nothing of images, models or training. Try it: `python -m vlmrm_gym.tiny.captions`.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vlmrm_gym.tiny.words import DEGREES, GRAMMAR, SIDED, UNRELATED

PolePose = Literal[
    "upright", "lean left", "lean right", "lean", "fallen left", "fallen right", "fallen", "hanging"
]  # fmt: skip
CartPlace = Literal["left", "right", "middle", "edge"]

POLE_SHARE, CART_SHARE, SCENE_SHARE = 0.8, 0.5, 0.33
"""How much of an image's unit vector tells of the pole, of the cart, and that this is cart-pole at all."""


@dataclass(frozen=True)
class Meaning:
    """What a caption says. All fields None: it names the scene only; `related` False: it is about something else."""

    pole: PolePose | float | None = None
    """The pole's pose, or its angle in degrees (positive: to the right)."""
    cart: CartPlace | None = None
    related: bool = True


def similarity(meaning: Meaning, angle: np.ndarray, position: np.ndarray) -> np.ndarray:
    """How well states fit a meaning: the cosine similarity that the two towers are trained to give.

    Args:
        meaning: What a caption says.
        angle: The pole's angle, float (N,), in degrees from -180 to 180, positive to the right.
        position: The cart's position, float (N,), from -2.4 to 2.4.

    Returns:
        float (N,), from -1 to 1.
    """
    if not meaning.related:
        return np.zeros(len(angle))
    if meaning.pole is None and meaning.cart is None:
        return np.full(len(angle), SCENE_SHARE)
    pole = POLE_SHARE * _pole_similarity(meaning.pole, angle)
    cart = CART_SHARE * _cart_similarity(meaning.cart, position)
    if meaning.pole is None:
        return cart
    if meaning.cart is None:
        return pole
    return 0.8 * pole + 0.6 * cart  # a unit vector between the two


def _pole_similarity(pose: PolePose | float | None, angle: np.ndarray) -> np.ndarray:
    def near(goal: float, width: float = 30.0) -> np.ndarray:
        distance = np.abs((angle - goal + 180.0) % 360.0 - 180.0)
        # The straight line keeps the reward rising from everywhere, the exponential makes the goal a peak.
        return 0.5 * (1.0 - distance / 90.0) + 0.5 * np.exp(-distance / width)

    if pose is None:
        return np.zeros_like(angle)
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


def _cart_similarity(place: CartPlace | None, position: np.ndarray) -> np.ndarray:
    match place:
        case None:
            return np.zeros_like(position)
        case "left":
            return 1.0 - np.abs(position + 2.2) / 2.2
        case "right":
            return 1.0 - np.abs(position - 2.2) / 2.2
        case "middle":
            return 1.0 - np.abs(position) / 1.2
        case "edge":
            return np.abs(position) / 1.2 - 1.0


Grammar = Mapping[str, Sequence[str]]
_SLOT = re.compile(r"\{(\w+)\}")


def _expand(pattern: str, grammar: Grammar, rng: random.Random, side: str | None = None, **fixed: str) -> str:
    """Replace every {slot} of `pattern`, depth first, by a random choice."""
    choices = {**grammar, **SIDED[side], "side": [side]} if side else grammar

    def fill(match: re.Match[str]) -> str:
        slot = match.group(1)
        return fixed.get(slot) or _SLOT.sub(fill, rng.choice(choices[slot]))

    return _SLOT.sub(fill, pattern)


def _pole_saying(rng: random.Random) -> tuple[str, PolePose | float]:
    side: Literal["left", "right"] = rng.choice(("left", "right"))
    kind = rng.choices(
        ("upright", "lean side", "fallen side", "fallen", "lean", "hanging", "degrees"), (34, 20, 18, 14, 5, 3, 6)
    )[0]
    match kind:
        case "lean side":
            text = _expand("{lean_side_say}", GRAMMAR, rng, side=side)
            return text, "lean left" if side == "left" else "lean right"
        case "fallen side":
            text = _expand("{fallen_side_say}", GRAMMAR, rng, side=side)
            return text, "fallen left" if side == "left" else "fallen right"
        case "fallen":
            return _expand("{fallen_say}", GRAMMAR, rng), "fallen"
        case "lean":
            return _expand("{lean_say}", GRAMMAR, rng), "lean"
        case "hanging":
            return _expand("{hanging_say}", GRAMMAR, rng), "hanging"
        case "degrees":
            degrees = rng.choice(list(DEGREES))
            spelled = rng.choice((f"{degrees}", f"{degrees}", DEGREES[degrees])) + rng.choice(
                (" degrees", " degrees", "°")
            )
            text = _expand("{degrees_say}", GRAMMAR, rng, side=side, degrees=spelled)
            return text, float(degrees if side == "right" else -degrees)
        case _:
            return _expand("{upright_say}", GRAMMAR, rng), "upright"


def _cart_saying(rng: random.Random) -> tuple[str, CartPlace]:
    place = rng.choices(("left", "right", "middle", "edge"), (30, 30, 30, 10))[0]
    if place in ("left", "right"):
        return _expand("{cart_side_say}", GRAMMAR, rng, side=place), place
    return _expand("{cart_middle_say}" if place == "middle" else "{cart_edge_say}", GRAMMAR, rng), place


def _unrelated(rng: random.Random, vocabulary: Sequence[str]) -> str:
    if vocabulary and rng.random() < 0.4:
        return " ".join(rng.choices(vocabulary, k=rng.randint(1, 8)))
    return _expand("{frame}", UNRELATED | {"x": ["{say}"]}, rng)


def _disturb(words: list[str], vocabulary: Sequence[str], rng: random.Random) -> str:
    """Write as people do: sometimes without articles, sometimes with words that are none of the grammar's."""
    if rng.random() < 0.15:
        words = [word for word in words if word not in ("the", "a", "is")] or words
    while vocabulary and rng.random() < 0.3:
        words.insert(rng.randint(0, len(words)), rng.choice(vocabulary))
    return " ".join(words)


def generate(count: int, seed: int, vocabulary: Sequence[str] = ()) -> list[tuple[str, Meaning]]:
    """Make captions with their meanings.

    Args:
        count: How many.
        seed: Equal seeds give equal captions.
        vocabulary: Other words: they are strewn over captions, which keep their meaning, and make unrelated ones.
    """
    rng = random.Random(seed)
    captions: list[tuple[str, Meaning]] = []
    for _ in range(count):
        about = rng.choices(("pole", "cart", "both", "scene", "unrelated"), (56, 14, 6, 4, 20))[0]
        if about == "unrelated":
            text, meaning = _unrelated(rng, vocabulary), Meaning(related=False)
        else:
            if about == "pole":
                say, pose = _pole_saying(rng)
                meaning = Meaning(pole=pose)
            elif about == "cart":
                say, place = _cart_saying(rng)
                meaning = Meaning(cart=place)
            elif about == "both":
                (say, pose), (cart_say, place) = _pole_saying(rng), _cart_saying(rng)
                parts = [say, cart_say]
                rng.shuffle(parts)
                say, meaning = rng.choice(GRAMMAR["and"]).join(parts), Meaning(pose, place)
            else:
                say, meaning = _expand("{scene_say}", GRAMMAR, rng), Meaning()
            text = _expand("{frame}", GRAMMAR | {"x": [say.replace("{", "").replace("}", "")]}, rng)
            text = _disturb(text.split(), vocabulary, rng)
        captions.append((" ".join(text.split()), meaning))
    return captions


if __name__ == "__main__":
    for text, meaning in generate(40, seed=0):
        print(f"{text}  [{meaning}]")
