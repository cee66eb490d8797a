"""Mountain car about as a photograph would show it: a car, a flag and mountains.

Coordinates are those of Gymnasium's drawing: x in [0, 600] to the right, y in [0, 400] upwards.
"""

import math

import numpy as np
import pygame
from numpy.typing import NDArray

from vlmrm_gym.rendering.mountain_background import background
from vlmrm_gym.rendering.mountain_car_sprite import AXLE_HEIGHT, CAR_SIZE, draw_car
from vlmrm_gym.rendering.mountain_track import place_car


class MountainScene:
    """Paints the scene, upside down, on a surface of 600x400 times a scale: a `_Painter` of `classic_control`."""

    def __init__(self, scale: int) -> None:
        self._scale = scale
        self._car = pygame.transform.flip(draw_car(scale), False, True)

    def background(self) -> pygame.Surface:
        """Everything but the car."""
        surface = pygame.Surface((600 * self._scale, 400 * self._scale), depth=32)
        pygame.surfarray.blit_array(surface, background(400 * self._scale, 600 * self._scale)[::-1].swapaxes(0, 1))
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
