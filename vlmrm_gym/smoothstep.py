"""The smoothstep function, for procedural images."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def smoothstep(low: float, high: float, value: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Hermite interpolation 3t^2 - 2t^3: 0 below `low`, 1 above `high`."""
    t = np.clip((value - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)
