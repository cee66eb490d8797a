"""Mountain car: where the car is."""

import random

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rendering.classic_control import MountainCarRenderer
from vlmrm_gym.tiny.words import common
from vlmrm_gym.tiny.words import mountain_car as words
from vlmrm_gym.tiny.world import SCENE_SHARE, Says, World, expand, joined, nearness

GRAMMAR = joined(common.GRAMMAR, words.GRAMMAR)
PLACES = {"valley": -0.52, "left": -1.15, "right_slope": 0.05, "left_slope": -0.85}
"""Positions of the places that captions name, besides the goal."""
FLAG = 0.45
CAR_SHARE = 0.8
"""How much of an image's unit vector tells where the car is."""


def sample_states(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Positions: (count, 1)."""
    kind = rng.choice(3, size=count, p=[0.7, 0.15, 0.15])
    position = np.select(
        [kind == 0, kind == 1],
        [rng.uniform(-1.2, 0.6, count), rng.normal(FLAG, 0.08, count)],
        rng.normal(-0.52, 0.1, count),
    )
    return np.clip(position, -1.2, 0.6)[:, None]


def similarity(says: Says, states: NDArray[np.float64]) -> NDArray[np.float64]:
    """Near a place; of the goal, height tells too: it is the peak."""
    position = states[:, 0]
    if not says:
        return np.full(len(position), SCENE_SHARE)

    def near(goal: float, width: float) -> NDArray[np.float64]:
        return nearness(np.abs(position - goal), 0.9, width)

    place = str(dict(says)["car"])
    if place == "goal":
        return CAR_SHARE * (0.75 * near(FLAG, 0.25) + 0.25 * np.sin(3 * position))
    return CAR_SHARE * near(PLACES[place], 0.3)


def say(rng: random.Random) -> tuple[str, Says]:
    """Something about the car's place, or the scene."""
    place = rng.choices(("goal", "valley", "left", "right_slope", "left_slope", "scene"), (44, 20, 14, 9, 6, 7))[0]
    return expand(f"{{{place}_say}}", GRAMMAR, rng), () if place == "scene" else (("car", place),)


WORLD = World(
    name="mountain car",
    share=0.16,
    shape=(400, 600),
    sample_states=sample_states,
    looks=lambda height, width: [(MountainCarRenderer(height, width, textured=look), 0.5) for look in (True, False)],
    describe=lambda states: states,
    similarity=similarity,
    say=say,
    grammar=GRAMMAR,
)
