"""Mountain car about as a photograph would show it: a car, a flag and mountains.

Coordinates are those of Gymnasium's drawing: x in [0, 600] to the right, y in [0, 400] upwards.
"""

import math
from pathlib import Path

import numpy as np
import pygame
from numpy.typing import NDArray

WHEELBASE, WHEEL_RADIUS = 33.0, 5.6
CAR_SIZE = 64, 32
"""Width and height of the car's picture; the car is centred horizontally."""
AXLE_HEIGHT = 4 + WHEEL_RADIUS
"""Height of the axles above the picture's lower edge."""

PICTURES = Path(__file__).parent / "mountain"
"""Painted by `python -m painting`."""


class MountainScene:
    """Paints the scene, upside down, on a surface of 600x400 times a scale: a `_Painter` of `classic_control`."""

    def __init__(self, scale: int) -> None:
        self._scale = scale
        car = pygame.image.load(PICTURES / "car.png")  # premultiplied alpha
        self._car = pygame.transform.flip(
            pygame.transform.smoothscale(car, [side * scale for side in CAR_SIZE]), False, True
        )

    def background(self) -> pygame.Surface:
        """Everything but the car; above 1200x800, which is the picture's size, it is blurred."""
        size = 600 * self._scale, 400 * self._scale
        surface = pygame.Surface(size, depth=32)
        picture = pygame.image.load(PICTURES / "background.png")
        surface.blit(pygame.transform.flip(pygame.transform.smoothscale(picture, size), False, True), (0, 0))
        return surface

    def bounds(self, state: NDArray[np.float64]) -> pygame.Rect:
        """A box around the car."""
        x, y, _ = self._pose(state)
        half = math.ceil(math.hypot(*CAR_SIZE) / 2 * self._scale) + 2
        return pygame.Rect(round(x) - half, round(y) - half, 2 * half, 2 * half)

    def paint(self, surface: pygame.Surface, state: NDArray[np.float64]) -> None:
        """Paint the car."""
        x, y, angle = self._pose(state)
        turned = pygame.transform.rotozoom(self._car, -math.degrees(angle), 1)
        corner = round(x - turned.get_width() / 2), round(y - turned.get_height() / 2)
        surface.blit(turned, corner, special_flags=pygame.BLEND_PREMULTIPLIED)

    def paint_in_front(self, surface: pygame.Surface) -> None:
        """Nothing: the car passes in front of the flag."""

    def _pose(self, state: NDArray[np.float64]) -> tuple[float, float, float]:
        """Column and row of the sprite's centre, and the car's angle."""
        x, y, angle = place_car((float(np.clip(state[0], -2.1, 1.5)) + 1.2) / 0.003)  # outside the frame beyond
        up = CAR_SIZE[1] / 2 - AXLE_HEIGHT
        return (x - up * math.sin(angle)) * self._scale, (y + up * math.cos(angle)) * self._scale, angle


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
