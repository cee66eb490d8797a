"""What a world teaches the bundled model: how it looks, in which states, and what can truly be said of them."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rendering.renderer import Renderer

Says = tuple[tuple[str, str | float], ...]
"""What a caption says of the world's state: aspects and their values, sorted. Empty: it names the scene only."""

SCENE_SHARE = 0.33
"""How much of an image's unit vector tells which world it shows: what captions that only name the scene get."""


@dataclass(frozen=True, kw_only=True)
class World:
    """One world."""

    name: str
    share: float
    """Of all pictures and captions."""
    shape: tuple[int, int]
    """Height and width of what the environment shows."""
    sample_states: Callable[[int, np.random.Generator], NDArray[np.float64]]
    """`(count, rng)` to states, float64 (count, S)."""
    looks: Callable[[int, int], Sequence[tuple[Renderer, float]]]
    """`(height, width)` to the renderers of its looks, each with the share of the states that it draws."""
    describe: Callable[[NDArray[np.float64]], Any]
    """States (N, S) to whatever `similarity` needs to know of them."""
    similarity: Callable[[Says, Any], NDArray[np.float64]]
    """How well described states fit what a caption says: (N,), from -1 to 1, the cosine that the towers shall give."""
    say: Callable[[random.Random], tuple[str, Says]]
    """A random saying, and what it says."""
    grammar: Mapping[str, Sequence[str]]
    """The words of its captions, the common ones included."""


def nearness(distance: NDArray[np.float64], reach: float, width: float) -> NDArray[np.float64]:
    """1 at distance 0, falling: along a straight line, so that the reward rises from everywhere, 0 at the reach; and,
    with the same weight, exponentially over the width, so that the goal is a peak.
    """
    return 0.5 * (1.0 - distance / reach) + 0.5 * np.exp(-distance / width)


Grammar = Mapping[str, Sequence[str]]
_SLOT = re.compile(r"\{(\w+)\}")


def expand(pattern: str, grammar: Grammar, rng: random.Random, **fixed: str) -> str:
    """Replace every {slot} of a pattern, depth first, by a random choice of `grammar[slot]`."""

    def fill(match: re.Match[str]) -> str:
        slot = match.group(1)
        return fixed.get(slot) or _SLOT.sub(fill, rng.choice(grammar[slot]))

    return _SLOT.sub(fill, pattern)


def joined(common: Grammar, own: Grammar) -> dict[str, Sequence[str]]:
    """Two grammars in one; lists that both have are joined."""
    return {slot: (*common.get(slot, ()), *own.get(slot, ())) for slot in {**common, **own}}
