"""The mountain car domain: captions about the car's position."""

import random

import numpy as np
from numpy.typing import NDArray

from bundled_model.domain import SCENE_SIMILARITY, Attributes, Domain, proximity
from bundled_model.grammar import expand, merge_grammars, read_grammar
from vlmrm_gym.states.classic_control import MountainCarRenderer

GRAMMAR = merge_grammars(read_grammar("common"), read_grammar("mountain_car"))
PLACES = {"valley": -0.52, "left": -1.15, "right_slope": 0.05, "left_slope": -0.85}
"""Car positions of the places that captions name, except the goal."""
FLAG = 0.45
CAR_SIMILARITY = 0.8
"""Similarity of an image with a caption that states where the car is, at that place."""


def sample_states(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Car positions, float64 (count, 1): uniform, near the flag, and in the valley."""
    kind = rng.choice(3, size=count, p=[0.7, 0.15, 0.15])
    position = np.select(
        [kind == 0, kind == 1],
        [rng.uniform(-1.2, 0.6, count), rng.normal(FLAG, 0.08, count)],
        rng.normal(-0.52, 0.1, count),
    )
    return np.clip(position, -1.2, 0.6)[:, None]


def similarity(attributes: Attributes, states: NDArray[np.float64]) -> NDArray[np.float64]:
    """Proximity to the stated place; for the goal, also the height of the track, since it is at the peak."""
    position = states[:, 0]
    if not attributes:
        return np.full(len(position), SCENE_SIMILARITY)

    def near(goal: float, width: float) -> NDArray[np.float64]:
        return proximity(np.abs(position - goal), 0.9, width)

    place = str(dict(attributes)["car"])
    if place == "goal":
        return CAR_SIMILARITY * (0.75 * near(FLAG, 0.25) + 0.25 * np.sin(3 * position))
    return CAR_SIMILARITY * near(PLACES[place], 0.3)


def sample_caption(rng: random.Random) -> tuple[str, Attributes]:
    """A caption about the car's position, or about the scene only."""
    place = rng.choices(("goal", "valley", "left", "right_slope", "left_slope", "scene"), (44, 20, 14, 9, 6, 7))[0]
    return expand(f"{{{place}_say}}", GRAMMAR, rng), () if place == "scene" else (("car", place),)


DOMAIN = Domain(
    name="mountain car",
    share=0.16,
    shape=(400, 600),
    sample_states=sample_states,
    renderers=lambda height, width: [
        (MountainCarRenderer(height, width, textured=textured), 0.5) for textured in (True, False)
    ],
    describe=lambda states: states,
    similarity=similarity,
    sample_caption=sample_caption,
    grammar=GRAMMAR,
)
