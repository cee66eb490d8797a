"""What procedurally made pictures share."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def smooth_step(low: float, high: float, value: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """0 below `low`, 1 above `high`, smooth between them."""
    t = np.clip((value - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)
