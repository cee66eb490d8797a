"""Procedural images: colours, antialiased edges, and fractal noise. Images are float32 arrays of values from 0 to 1."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.floating[Any]]
"""Values at every pixel, (H, W), or colours, (H, W, 3); the first row is at the top."""


def rgb(red: float, green: float, blue: float) -> Field:
    """A colour: float32 (3,)."""
    return np.array((red, green, blue), dtype=np.float32)


def to_bytes(values: Field) -> NDArray[np.uint8]:
    """Values from 0 to 1 as uint8."""
    return np.clip(values * 255 + 0.5, 0, 255).astype(np.uint8)


def smoothstep(low: float, high: float, value: Field) -> Field:
    """Hermite interpolation 3t^2 - 2t^3: 0 below `low`, 1 above `high`."""
    t = np.clip((value - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def blend(a: Field, b: Field, share: Field | float) -> Field:
    """Linear interpolation: `a` where the share is 0, `b` where it is 1."""
    return a + (b - a) * share


def coverage(value: Field, low: float, high: float, pixel: float) -> Field:
    """Fraction of each pixel that lies between two edges: antialiasing."""
    return np.clip(0.5 + (value - low) / pixel, 0, 1) * np.clip(0.5 + (high - value) / pixel, 0, 1)


def round_corners(corners: Sequence[tuple[float, float]], times: int = 3) -> list[tuple[float, float]]:
    """A polygon with rounded corners: Chaikin's corner cutting."""
    for _ in range(times):
        cut: list[tuple[float, float]] = []
        for (x0, y0), (x1, y1) in zip(corners, (*corners[1:], corners[0]), strict=True):
            cut += [(0.75 * x0 + 0.25 * x1, 0.75 * y0 + 0.25 * y1), (0.25 * x0 + 0.75 * x1, 0.25 * y0 + 0.75 * y1)]
        corners = cut
    return list(corners)


def fractal_noise(x: Field, y: Field, cell: float, octaves: int, seed: int, *, ridged: bool = False) -> Field:
    """Octaves of Perlin noise, about 0 to 1, the coarsest with cells of size `cell`; `ridged`: with sharp ridges."""
    random = np.random.default_rng(seed)
    total, weight, weights = np.zeros(np.broadcast_shapes(x.shape, y.shape), dtype=np.float32), 1.0, 0.0
    for octave in range(octaves):
        size = cell / 2**octave
        angles = random.uniform(0, 2 * np.pi, 4096).astype(np.float32)
        value = _gradient_noise(x / size + 17.3 * octave, y / size + 9.1 * octave, np.cos(angles), np.sin(angles))
        total = total + weight * (1 - 2 * np.abs(value) if ridged else 0.5 + value)
        weight, weights = weight * 0.5, weights + weight
    return total / weights


def _gradient_noise(x: Field, y: Field, gx: Field, gy: Field) -> Field:
    """Perlin noise, about -0.5 to 0.5, at coordinates that broadcast; gx and gy are a table of gradients."""
    column, row = np.floor(x).astype(np.int32), np.floor(y).astype(np.int32)
    fx, fy = (x - column).astype(np.float32), (y - row).astype(np.float32)
    u, v = fx * fx * fx * (fx * (fx * 6 - 15) + 10), fy * fy * fy * (fy * (fy * 6 - 15) + 10)

    def corner(dx: int, dy: int) -> Field:
        index = ((column + dx) * 73 + (row + dy) * 1193) & 4095
        return gx[index] * (fx - dx) + gy[index] * (fy - dy)

    low = corner(0, 0) * (1 - u) + corner(1, 0) * u
    high = corner(0, 1) * (1 - u) + corner(1, 1) * u
    return (low * (1 - v) + high * v) * 0.8


def hillshade(relief: Field, tall: Field | float, pixel: float) -> Field:
    """Brightness of a relief, 0 to 1, with the sun at the upper left. `tall` is the height of the value 1."""
    down, right = np.gradient(relief * (tall / pixel))
    normal = 1 / np.sqrt(1 + right**2 + down**2)
    return np.clip((0.45 * down - 0.55 * right + 0.70) * normal, 0, 1)
