"""Random streams of the searches of a check, independent of one another and decided by one seed.

Sampled states use the seed directly.
"""

from typing import Literal, get_args

import numpy as np

Part = Literal["first states", "search", "reach"]
"""What draws random numbers of its own."""

Seed = int | np.random.SeedSequence
"""What `numpy.random.default_rng` makes a generator from."""


def stream(seed: int, part: Part, number: int = 0) -> np.random.SeedSequence:
    """The seed of one part's random numbers.

    Args:
        seed: The seed of the check.
        part: What draws the numbers.
        number: Which of several streams of the part, from 0.
    """
    return np.random.SeedSequence(seed, spawn_key=(get_args(Part).index(part), number))
