"""The car of the photo-like mountain car: red, from the side, heading right. Units are those of Gymnasium's drawing."""

from collections.abc import Sequence

import numpy as np
import pygame
from numpy.typing import NDArray

from painting.procedural import Field, blend, coverage, rgb, round_corners, smoothstep, to_bytes
from vlmrm_gym.states.classic_control import AXLE_HEIGHT, CAR_SIZE, WHEEL_RADIUS, WHEELBASE

Point = tuple[float, float]

_GROUND = AXLE_HEIGHT - WHEEL_RADIUS
_OVERSAMPLING = 8
"""Pixels per unit; the scene draws the picture smaller."""

_OUTLINE: list[Point] = [
    *((3.2, 8.2), (2.6, 12), (3.0, 16.5), (5.5, 19.2), (8, 19.8), (12.5, 24.8), (18, 27.6), (27, 28.3)),
    *((34, 27.4), (39.5, 23.6), (43.5, 20.0), (51, 18.6), (57.5, 16.6), (60.6, 13.6), (61.4, 9.8), (60.4, 7.6)),
    *((52, 7.0), (32, 6.8), (10, 7.0)),
]
_PANES: list[list[Point]] = [
    [(10.6, 20.2), (14.2, 24.2), (18.6, 26.2), (25.2, 26.8), (25.2, 20.0)],
    [(26.8, 20.0), (26.8, 26.8), (33.2, 26.1), (37.6, 23.0), (40.6, 19.9)],
]


def car() -> NDArray[np.uint8]:
    """The car with premultiplied alpha: uint8 (H, W, 4), `CAR_SIZE` times 8 pixels."""
    layers = _Layers()
    # The shadow on the ground, and the dark underbody.
    shadow = np.exp(-(((layers.x - 32) / 25) ** 6) - ((layers.y - _GROUND + 0.9) / 1.9) ** 2)
    layers.put(rgb(0.02, 0.02, 0.03), 0.62 * shadow)
    underbody = [(8, AXLE_HEIGHT + 3), (56, AXLE_HEIGHT + 3), (55, _GROUND + 3), (9, _GROUND + 3)]
    layers.put(rgb(0.04, 0.04, 0.05), layers.mask(underbody))
    body = layers.mask(round_corners(_OUTLINE))
    _paint_body(layers, body)
    _paint_windows(layers, body)
    _paint_details(layers, body)
    for wheel in (32 - WHEELBASE / 2, 32 + WHEELBASE / 2):
        _paint_wheel(layers, body, wheel)
    return layers.to_pixels()


class _Layers:
    """An image that layers are painted on."""

    def __init__(self) -> None:
        self._width, self._height = (side * _OVERSAMPLING for side in CAR_SIZE)
        self.x: Field = ((np.arange(self._width, dtype=np.float32) + 0.5) / _OVERSAMPLING)[None, :]
        self.y: Field = (CAR_SIZE[1] - (np.arange(self._height, dtype=np.float32) + 0.5) / _OVERSAMPLING)[:, None]
        self._color: Field = np.zeros((self._height, self._width, 3), dtype=np.float32)
        self._alpha: Field = np.zeros((self._height, self._width), dtype=np.float32)

    def put(self, paint: Field, cover: Field) -> None:
        """Paint over the pixels, where and as far as they are covered."""
        self._color = self._color * (1 - cover[..., None]) + paint * cover[..., None]
        self._alpha = self._alpha * (1 - cover) + cover

    def mask(self, polygon: Sequence[Point]) -> Field:
        """1 inside of a polygon, 0 outside."""
        surface = pygame.Surface((self._width, self._height), depth=32)
        corners = [(x * _OVERSAMPLING, (CAR_SIZE[1] - y) * _OVERSAMPLING) for x, y in polygon]
        pygame.draw.polygon(surface, (255, 255, 255), corners)
        return (pygame.surfarray.pixels3d(surface)[..., 0].T / 255.0).astype(np.float32)

    def to_pixels(self) -> NDArray[np.uint8]:
        """The image: uint8 (H, W, 4)."""
        return to_bytes(np.dstack([self._color, self._alpha]))


def _paint_body(layers: _Layers, body: Field) -> None:
    x, y = layers.x, layers.y
    up = np.clip((y - 7) / 21, 0, 1)
    red = blend(rgb(0.30, 0.01, 0.02), rgb(0.86, 0.06, 0.06), smoothstep(0.02, 0.42, up)[..., None])
    highlight = 0.75 * np.exp(-(((y - 18.3 + 0.012 * (x - 30) ** 2 / 10) / 0.9) ** 2))
    red = blend(red, rgb(1.0, 0.52, 0.46), highlight[..., None])
    red = blend(red, rgb(1.0, 0.62, 0.56), smoothstep(0.90, 1.02, up)[..., None] * 0.8)
    red = blend(red, rgb(0.25, 0.0, 0.01), (0.55 * np.exp(-(((y - 10.4) / 0.5) ** 2)))[..., None])
    layers.put(red, body)


def _paint_windows(layers: _Layers, body: Field) -> None:
    reflection = smoothstep(18, 27, layers.y + 0.25 * (layers.x - 30))
    glass = blend(rgb(0.08, 0.11, 0.15), rgb(0.62, 0.76, 0.86), reflection[..., None])
    for pane in _PANES:
        layers.put(rgb(0.03, 0.03, 0.04), layers.mask(round_corners(pane, 1)) * body)
        inner = [(x + 0.10 * (26 - x) * 0.3, 23 + (y - 23) * 0.84) for x, y in pane]
        layers.put(glass, layers.mask(round_corners(inner, 1)) * body)


def _paint_details(layers: _Layers, body: Field) -> None:
    """Door seams, handles, headlight, tail light, and sill."""
    x, y = layers.x, layers.y
    seam = np.maximum(
        coverage(x, 25.7, 26.1, 0.1) * coverage(y, 8.6, 19.4, 0.1),
        coverage(x, 40.6, 41.0, 0.1) * coverage(y, 10.5, 19.4, 0.1),
    )
    layers.put(rgb(0.22, 0.0, 0.01), 0.8 * seam * body)
    for handle in (21.0, 35.6):
        layers.put(rgb(0.95, 0.86, 0.84), 0.9 * coverage(x, handle, handle + 3, 0.3) * coverage(y, 16.4, 17.2, 0.3))
    headlight = layers.mask([(55.2, 16.8), (60.8, 13.4), (60.4, 12.6), (55.8, 14.6)])
    layers.put(rgb(1.0, 0.97, 0.86), body * headlight)
    tail_light = layers.mask([(2.4, 17), (6.2, 18.4), (5.6, 15.2), (2.4, 14.4)])
    layers.put(rgb(0.62, 0.0, 0.0), body * tail_light)
    layers.put(rgb(0.16, 0.16, 0.17), body * (1 - smoothstep(7.6, 8.6, y)))


def _paint_wheel(layers: _Layers, body: Field, wheel: float) -> None:
    """Wheel arch, tyre, rim with five spokes, and hub."""
    x, y, axle, large = layers.x, layers.y, AXLE_HEIGHT, _OVERSAMPLING
    distance = np.hypot(x - wheel, y - axle)
    arch = np.clip((WHEEL_RADIUS + 1.0 - distance) * large, 0, 1) * (y > axle - 3) * body
    layers.put(rgb(0.03, 0.02, 0.02), arch)
    tyre = rgb(0.09, 0.09, 0.10) + 0.10 * coverage(distance, 4.6, 5.0, 0.3)[..., None]
    layers.put(tyre, np.clip((WHEEL_RADIUS - distance) * large, 0, 1))
    spokes = 0.5 + 0.5 * np.cos(5 * np.arctan2(y - axle, x - wheel))
    metal = np.maximum(smoothstep(0.45, 0.6, spokes), smoothstep(3.0, 3.3, distance))
    rim = blend(rgb(0.28, 0.29, 0.31), rgb(0.90, 0.91, 0.93), metal[..., None])
    layers.put(rim * (0.8 + 0.05 * (y - axle))[..., None], np.clip((3.8 - distance) * large, 0, 1))
    layers.put(rgb(0.5, 0.5, 0.52), np.clip((0.9 - distance) * large, 0, 1))
