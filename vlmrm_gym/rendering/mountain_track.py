"""The track of the photo-like mountain car, and where a car stands on it.

Coordinates are those of Gymnasium's drawing: x in [0, 600] to the right, y in [0, 400] upwards.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

WHEELBASE, WHEEL_RADIUS = 33.0, 5.6


def track_height(x: ArrayLike) -> NDArray[np.float64]:
    """The y of the track at x."""
    return (np.sin(3 * (np.asarray(x) * 0.003 - 1.2)) * 0.45 + 0.55) / 0.003


def place_car(x: float) -> tuple[float, float, float]:
    """A car at x with both wheels on the track: x and y midway between its axles, and its angle in radians."""
    half = WHEELBASE / 2
    for _ in range(4):
        (x0, x1), (y0, y1) = _axles(x, half)
        half *= WHEELBASE / math.hypot(x1 - x0, y1 - y0)
    (x0, x1), (y0, y1) = _axles(x, half)
    return (x0 + x1) / 2, (y0 + y1) / 2, math.atan2(y1 - y0, x1 - x0)


def _axles(x: float, half: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """The x and the y of the axles of wheels that touch the track at x - half and x + half."""
    contacts = (x - half, x + half)
    phases = [3 * (contact * 0.003 - 1.2) for contact in contacts]
    slopes = [1.35 * math.cos(phase) for phase in phases]
    ups = [WHEEL_RADIUS / math.hypot(1, slope) for slope in slopes]
    xs = [contact - slope * up for contact, slope, up in zip(contacts, slopes, ups, strict=True)]
    ys = [(math.sin(phase) * 0.45 + 0.55) / 0.003 + up for phase, up in zip(phases, ups, strict=True)]
    return (xs[0], xs[1]), (ys[0], ys[1])
