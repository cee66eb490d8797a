"""A domain of the bundled model: states, renderers and graded captions of one environment."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundled_model.grammar import Grammar
from vlmrm_gym.states.states import Renderer

Attributes = tuple[tuple[str, str | float], ...]
"""What a caption states, as sorted pairs of attribute and value: (("arms", "raised"), ("posture", "stand")).

Empty for a caption that only names the scene."""

SCENE_SIMILARITY = 0.33
"""Similarity of every image of a domain with captions that only name its scene."""


@dataclass(frozen=True, kw_only=True)
class Domain:
    """One environment that the model is trained on."""

    name: str
    share: float
    """Fraction of images and captions that belong to this domain."""
    shape: tuple[int, int]
    """Height and width of the environment's own frames, in pixels."""
    sample_states: Callable[[int, np.random.Generator], NDArray[np.float64]]
    """`(count, rng)` to states, float64 (count, S)."""
    renderers: Callable[[int, int], Sequence[tuple[Renderer, float]]]
    """`(height, width)` to renderers, each with the fraction of states that it draws."""
    describe: Callable[[NDArray[np.float64]], Any]
    """States, float64 (N, S), to the features that `similarity` takes."""
    similarity: Callable[[Attributes, Any], NDArray[np.float64]]
    """`(attributes, described)` to the target cosine similarity of each state's image with the caption: float64 (N,),
    from -1 to 1."""
    sample_caption: Callable[[random.Random], tuple[str, Attributes]]
    """Draws a caption and its attributes."""
    grammar: Grammar
    """The grammar of its captions, the common part included."""


def proximity(distance: NDArray[np.float64], reach: float, width: float) -> NDArray[np.float64]:
    """1 at distance 0, decreasing: the mean of a line that is 0 at `reach` and an exponential of scale `width`.

    The line keeps a slope at every distance; the exponential makes a peak at 0.
    """
    return 0.5 * (1.0 - distance / reach) + 0.5 * np.exp(-distance / width)
