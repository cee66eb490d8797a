"""Mountain car about as a photograph would show it: a car, a flag and mountains, made of noise and polygons.

Coordinates are those of Gymnasium's drawing: x in [0, 600] to the right, y in [0, 400] upwards.
"""

import functools
import math
from typing import Any

import numpy as np
import pygame
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.envs.smooth import smooth_step

Field = NDArray[np.floating[Any]]
"""Values at every pixel, (H, W), or colours, (H, W, 3); rows run downwards."""

WHEELBASE, WHEEL_RADIUS = 33.0, 5.6
CAR_SIZE = 64, 32
"""Of the picture of the car; it is in the middle, from side to side."""
AXLE_HEIGHT = 4 + WHEEL_RADIUS
"""In that picture."""


class MountainScene:
    """Paints the scene, upside down, on a surface of 600x400 times a scale: see `classic_control`."""

    def __init__(self, scale: int) -> None:
        self._scale = scale
        self._car = pygame.transform.flip(car(scale), False, True)

    def background(self) -> pygame.Surface:
        """All but the car."""
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
        """Nothing: the car passes before the flag."""

    def _pose(self, state: NDArray[np.float64]) -> tuple[float, float, float]:
        """Column and row of the middle of the car's picture, and the angle of the car."""
        x, y, angle = stand((float(np.clip(state[0], -2.1, 1.5)) + 1.2) / 0.003)  # not seen from there on
        up = CAR_SIZE[1] / 2 - AXLE_HEIGHT
        return (x - up * math.sin(angle)) * self._scale, (y + up * math.cos(angle)) * self._scale, angle


def track_height(x: ArrayLike) -> NDArray[np.float64]:
    """The y of the track at x."""
    return (np.sin(3 * (np.asarray(x) * 0.003 - 1.2)) * 0.45 + 0.55) / 0.003


def stand(x: float) -> tuple[float, float, float]:
    """Where a car that is at x has its wheels on the track: x and y between the axles, and the angle in radians."""
    half = WHEELBASE / 2
    for _ in range(4):
        (x0, x1), (y0, y1) = _axles(x, half)
        half *= WHEELBASE / math.hypot(x1 - x0, y1 - y0)
    (x0, x1), (y0, y1) = _axles(x, half)
    return (x0 + x1) / 2, (y0 + y1) / 2, math.atan2(y1 - y0, x1 - x0)


def _axles(x: float, half: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Axles of wheels that touch the track at x - half and x + half: their x, their y."""
    contacts = (x - half, x + half)
    phases = [3 * (contact * 0.003 - 1.2) for contact in contacts]
    slopes = [1.35 * math.cos(phase) for phase in phases]
    ups = [WHEEL_RADIUS / math.hypot(1, slope) for slope in slopes]
    xs = [contact - slope * up for contact, slope, up in zip(contacts, slopes, ups, strict=True)]
    ys = [(math.sin(phase) * 0.45 + 0.55) / 0.003 + up for phase, up in zip(phases, ups, strict=True)]
    return (xs[0], xs[1]), (ys[0], ys[1])


@functools.lru_cache(maxsize=2)
def background(height: int, width: int) -> NDArray[np.uint8]:
    """The scene without the car: uint8 (height, width, 3), stretched if it is not 3:2."""
    x = ((np.arange(width, dtype=np.float32) + 0.5) * (600 / width))[None, :]
    y = (400 - (np.arange(height, dtype=np.float32) + 0.5) * (400 / height))[:, None]
    pixel = max(600 / width, 400 / height)
    picture = _sky(x, y)
    # From far to near: less haze, more detail.
    for seed, base, swing, cell, haze, snow_line in (
        (11, 190, 130, 150, 0.62, 215),
        (23, 140, 105, 120, 0.42, 215),
    ):
        picture = _range(picture, x, y, pixel, seed, base, swing, cell, haze, snow_line)
    picture = _forest(picture, x, y, pixel)
    picture = _foreground(picture, x, y, pixel)
    picture = _flag(picture, x, y, pixel)
    pixels = np.clip(picture * 255 + 0.5, 0, 255).astype(np.uint8)
    pixels.flags.writeable = False  # shared by all who ask for this size
    return pixels


def _sky(x: Field, y: Field) -> Field:
    up = np.clip((y - 60) / 340, 0, 1)[..., None] + np.zeros_like(x)[..., None]
    sky = _blend(_color(0.86, 0.90, 0.93), _color(0.20, 0.44, 0.76), up**0.85)
    far = 330 * np.log(y + 40)  # clouds near the horizon are farther away, and flatter
    here, sunwards = _noise(x, far, 170, 7, seed=5), _noise(x - 7, far + 9, 170, 7, seed=5)
    density = smooth_step(0.50, 0.70, here)
    light = np.clip(0.86 + 2.2 * (here - sunwards), 0.62, 1.0)[..., None]
    cloud = _blend(_color(0.62, 0.68, 0.76), _color(1.0, 0.99, 0.97), (light - 0.62) / 0.38)
    glow = np.exp(-(((x - 120) / 190) ** 2) - ((y - 300) / 170) ** 2)[..., None]
    sky = sky + 0.16 * glow * _color(1.0, 0.93, 0.78)
    return _blend(sky, cloud, (0.93 * density * smooth_step(90, 190, y))[..., None])


def _range(
    picture: Field,
    x: Field,
    y: Field,
    pixel: float,
    seed: int,
    base: float,
    swing: float,
    cell: float,
    haze: float,
    snow_line: float,
) -> Field:
    """Far mountains before a picture."""
    line = base + swing * (_ridges(x, np.zeros_like(y[:1]), cell, 7, seed) - 0.45)
    relief = _ridges(x + 0.35 * y, y * 0.8, 70, 6, seed + 1)
    light = _relief_light(relief, 34, pixel)
    snow = smooth_step(-14, 16, y - snow_line + 70 * (relief - 0.5))[..., None]
    ground = _blend(_color(0.33, 0.36, 0.38), _color(0.95, 0.96, 0.98), snow)
    ground = ground * (0.35 + 0.75 * light)[..., None]
    depth = np.clip(haze + (1 - haze) * 0.75 * smooth_step(20, 130, line - y), 0, 1)[..., None]
    ground = _blend(ground, _color(0.70, 0.79, 0.88), depth)
    return _blend(picture, ground, np.clip(0.5 + (line - y) / pixel, 0, 1)[..., None])


def _forest(picture: Field, x: Field, y: Field, pixel: float) -> Field:
    """Two rows of conifers at the bottom of the valley."""
    for seed, base, spacing, tall, color, haze in (
        (41, 92, 4.3, 15.0, (0.17, 0.27, 0.22), 0.42),
        (43, 66, 5.9, 20.0, (0.10, 0.20, 0.12), 0.16),
    ):
        random = np.random.default_rng(seed)
        ground = base + 34 * (_noise(x, np.zeros_like(y[:1]), 90, 4, seed) - 0.5)
        line = ground + 0.3 * tall
        for trunk in np.arange(0, 600, spacing) + random.uniform(-2, 2, len(np.arange(0, 600, spacing))):
            height, half = tall * random.uniform(0.55, 1.1), tall * random.uniform(0.14, 0.2)
            distance = np.abs(x - trunk) / half
            line = np.maximum(line, np.where(distance < 1, ground + height * (1 - distance) - 2, 0))
        texture = _ridges(1.7 * x, 0.6 * y, 14, 5, seed + 1)
        tree = _color(*color) * (0.55 + 0.9 * texture)[..., None]
        tree = _blend(tree, _color(0.62, 0.73, 0.80), haze + 0.25 * smooth_step(0, 60, line - y)[..., None])
        picture = _blend(picture, tree, np.clip(0.5 + (line - y) / pixel / 2, 0, 1)[..., None])
    return picture


def _foreground(picture: Field, x: Field, y: Field, pixel: float) -> Field:
    """The mountain with the track before a picture."""
    top = track_height(x).astype(np.float32)
    slope = (1.35 * np.cos(3 * (x * 0.003 - 1.2))).astype(np.float32)
    below = (top - y) / np.hypot(1, slope)  # the distance to the track, about

    bulk = _ridges(x + 0.25 * y, y, 110, 8, seed=61)
    grain = _noise(x, y, 9, 5, seed=67)
    rough = _noise(x, y, 60, 7, seed=83)
    cracks = smooth_step(0.80, 0.97, _ridges(x + 0.5 * y, 0.7 * y, 34, 5, seed=89))

    strata = _noise(x * 0.35, y + 0.3 * x, 16, 5, seed=71)
    rock = _blend(_color(0.33, 0.31, 0.30), _color(0.66, 0.62, 0.57), smooth_step(0.25, 0.75, strata)[..., None])
    rock = rock * (1 - 0.45 * cracks + 0.5 * (grain - 0.5))[..., None]
    meadow = smooth_step(0.3, 0.7, _noise(x, y, 40, 7, seed=73))
    grass = _blend(_color(0.17, 0.25, 0.09), _color(0.52, 0.55, 0.25), meadow[..., None])
    grass = grass * (0.60 + 0.80 * _noise(x, y, 3, 3, seed=79))[..., None]

    is_grass = smooth_step(0.42, 0.56, 0.98 - y / 300 + 1.3 * (rough - 0.5) - 0.7 * (bulk - 0.5) - 0.16 * np.abs(slope))
    is_snow = smooth_step(-8, 8, y - 268 + 190 * (rough - 0.5) + 150 * (bulk - 0.5) + 60 * (grain - 0.5))
    light = _relief_light(bulk + 0.12 * grain + 0.06 * is_grass * meadow, 40 - 14 * is_snow, pixel)
    ground = _blend(rock, grass, is_grass[..., None])
    ground = _blend(ground, _color(0.90, 0.90, 0.91), is_snow[..., None])

    # The sun is warm, and the sky lights what it does not reach.
    sun = _color(0.98, 0.93, 0.84) * light[..., None]
    ground = ground * (sun + _color(0.20, 0.24, 0.32) * (1 + 0.3 * is_snow)[..., None])
    ground = ground * (1 - 0.25 * smooth_step(40, 260, below))[..., None]
    # A trodden path along the top, with a lit edge, parts the mountain from what is behind it.
    path = _color(0.60, 0.50, 0.37) * (0.72 + 0.5 * grain)[..., None]
    ground = _blend(ground, path, (0.9 * (1 - smooth_step(3.2, 5.6, below + 2.4 * (grain - 0.5))))[..., None])
    ground = ground * (1 - 0.35 * np.exp(-(((below - 6) / 2.2) ** 2)))[..., None]
    return _blend(picture, ground, np.clip(0.5 + below / pixel, 0, 1)[..., None])


def _flag(picture: Field, x: Field, y: Field, pixel: float) -> Field:
    """A yellow flag on a pole, at the goal, before a picture."""
    foot = float(track_height(550.0))
    pole = _inside(x, 548.6, 551.4, pixel) * _inside(y, foot - 3, foot + 60, pixel)
    metal = _blend(_color(0.30, 0.31, 0.33), _color(0.93, 0.94, 0.95), np.exp(-(((x - 549.6) / 0.8) ** 2))[..., None])
    along = np.clip((x - 551) / 38, 0, 1)
    wave = np.sin(along * 7.2 + 0.4)
    middle = foot + 46 + 2.2 * wave * along - 3 * along
    cloth = _inside(x, 551, 589, pixel) * _inside(y - middle, -11.5, 11.5, pixel)
    yellow = _color(1.0, 0.84, 0.04) * (0.90 + 0.16 * np.cos(along * 7.2 + 0.4) + 0.006 * (y - middle))[..., None]
    picture = _blend(picture, metal, pole[..., None])
    return _blend(picture, np.clip(yellow, 0, 1), cloth[..., None])


def car(scale: float) -> pygame.Surface:
    """A red car from its side, heading right: `CAR_SIZE` times `scale`, with premultiplied transparency."""
    large = 8
    width, height = (side * large for side in CAR_SIZE)

    def points(*corners: tuple[float, float]) -> list[tuple[float, float]]:
        return [(x * large, (CAR_SIZE[1] - y) * large) for x, y in corners]

    def mask(draw_points: list[tuple[float, float]]) -> Field:
        surface = pygame.Surface((width, height), depth=32)
        pygame.draw.polygon(surface, (255, 255, 255), draw_points)
        return (pygame.surfarray.pixels3d(surface)[..., 0].T / 255.0).astype(np.float32)

    x = ((np.arange(width, dtype=np.float32) + 0.5) / large)[None, :]
    y = (CAR_SIZE[1] - (np.arange(height, dtype=np.float32) + 0.5) / large)[:, None]
    color = np.zeros((height, width, 3), dtype=np.float32)
    alpha = np.zeros((height, width), dtype=np.float32)

    def put(paint: Field, cover: Field) -> None:
        nonlocal color, alpha
        color = color * (1 - cover[..., None]) + paint * cover[..., None]
        alpha = alpha * (1 - cover) + cover

    rear, front = 32 - WHEELBASE / 2, 32 + WHEELBASE / 2
    axle, ground = AXLE_HEIGHT, AXLE_HEIGHT - WHEEL_RADIUS
    # The shadow on the ground, and the dark beneath the car.
    shadow = np.exp(-(((x - 32) / 25) ** 6) - ((y - ground + 0.9) / 1.9) ** 2)
    put(_color(0.02, 0.02, 0.03), 0.62 * shadow)
    put(_color(0.04, 0.04, 0.05), mask(points((8, axle + 3), (56, axle + 3), (55, ground + 3), (9, ground + 3))))

    outline = [
        *((3.2, 8.2), (2.6, 12), (3.0, 16.5), (5.5, 19.2), (8, 19.8), (12.5, 24.8), (18, 27.6), (27, 28.3)),
        *((34, 27.4), (39.5, 23.6), (43.5, 20.0), (51, 18.6), (57.5, 16.6), (60.6, 13.6), (61.4, 9.8), (60.4, 7.6)),
        *((52, 7.0), (32, 6.8), (10, 7.0)),
    ]
    body = mask(points(*_smooth(outline)))
    up = np.clip((y - 7) / 21, 0, 1)
    red = _blend(_color(0.30, 0.01, 0.02), _color(0.86, 0.06, 0.06), smooth_step(0.02, 0.42, up)[..., None])
    red = _blend(
        red,
        _color(1.0, 0.52, 0.46),
        (0.75 * np.exp(-(((y - 18.3 + 0.012 * (x - 30) ** 2 / 10) / 0.9) ** 2)))[..., None],
    )
    red = _blend(red, _color(1.0, 0.62, 0.56), smooth_step(0.90, 1.02, up)[..., None] * 0.8)
    red = _blend(red, _color(0.25, 0.0, 0.01), (0.55 * np.exp(-(((y - 10.4) / 0.5) ** 2)))[..., None])
    put(red, body)

    glass = _blend(
        _color(0.08, 0.11, 0.15), _color(0.62, 0.76, 0.86), smooth_step(18, 27, y + 0.25 * (x - 30))[..., None]
    )
    for pane in (
        [(10.6, 20.2), (14.2, 24.2), (18.6, 26.2), (25.2, 26.8), (25.2, 20.0)],
        [(26.8, 20.0), (26.8, 26.8), (33.2, 26.1), (37.6, 23.0), (40.6, 19.9)],
    ):
        put(_color(0.03, 0.03, 0.04), mask(points(*_smooth(pane, 1))) * body)
        inner = [(px + 0.10 * (26 - px) * 0.3, 23 + (py - 23) * 0.84) for px, py in pane]
        put(glass, mask(points(*_smooth(inner, 1))) * body)
    # Doors, handles, lamps, bumpers.
    seam = np.maximum(
        _inside(x, 25.7, 26.1, 0.1) * _inside(y, 8.6, 19.4, 0.1),
        _inside(x, 40.6, 41.0, 0.1) * _inside(y, 10.5, 19.4, 0.1),
    )
    put(_color(0.22, 0.0, 0.01), 0.8 * seam * body)
    for handle in (21.0, 35.6):
        put(_color(0.95, 0.86, 0.84), 0.9 * _inside(x, handle, handle + 3, 0.3) * _inside(y, 16.4, 17.2, 0.3))
    put(_color(1.0, 0.97, 0.86), body * mask(points((55.2, 16.8), (60.8, 13.4), (60.4, 12.6), (55.8, 14.6))))
    put(_color(0.62, 0.0, 0.0), body * mask(points((2.4, 17), (6.2, 18.4), (5.6, 15.2), (2.4, 14.4))))
    put(_color(0.16, 0.16, 0.17), body * (1 - smooth_step(7.6, 8.6, y)))

    for wheel in (rear, front):
        distance = np.hypot(x - wheel, y - axle)
        put(_color(0.03, 0.02, 0.02), np.clip((WHEEL_RADIUS + 1.0 - distance) * large, 0, 1) * (y > axle - 3) * body)
        put(
            _color(0.09, 0.09, 0.10) + 0.10 * _inside(distance, 4.6, 5.0, 0.3)[..., None],
            np.clip((WHEEL_RADIUS - distance) * large, 0, 1),
        )
        spokes = 0.5 + 0.5 * np.cos(5 * np.arctan2(y - axle, x - wheel))
        rim = _blend(
            _color(0.28, 0.29, 0.31),
            _color(0.90, 0.91, 0.93),
            np.maximum(smooth_step(0.45, 0.6, spokes), smooth_step(3.0, 3.3, distance))[..., None],
        )
        put(rim * (0.8 + 0.05 * (y - axle))[..., None], np.clip((3.8 - distance) * large, 0, 1))
        put(_color(0.5, 0.5, 0.52), np.clip((0.9 - distance) * large, 0, 1))

    surface = pygame.Surface((width, height), pygame.SRCALPHA)
    pygame.surfarray.pixels3d(surface)[...] = np.clip(color * 255 + 0.5, 0, 255).astype(np.uint8).swapaxes(0, 1)
    pygame.surfarray.pixels_alpha(surface)[...] = np.clip(alpha * 255 + 0.5, 0, 255).astype(np.uint8).T
    return pygame.transform.smoothscale(surface, [round(side * scale) for side in CAR_SIZE])


def _color(red: float, green: float, blue: float) -> Field:
    return np.array((red, green, blue), dtype=np.float32)


def _blend(a: Field, b: Field, part: Field | float) -> Field:
    return a + (b - a) * part


def _inside(value: Field, low: float, high: float, pixel: float) -> Field:
    """How much of a pixel is between two edges."""
    return np.clip(0.5 + (value - low) / pixel, 0, 1) * np.clip(0.5 + (high - value) / pixel, 0, 1)


def _smooth(corners: list[tuple[float, float]], times: int = 3) -> list[tuple[float, float]]:
    """Chaikin's corner cutting."""
    for _ in range(times):
        cut: list[tuple[float, float]] = []
        for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True):
            cut += [(0.75 * x0 + 0.25 * x1, 0.75 * y0 + 0.25 * y1), (0.25 * x0 + 0.75 * x1, 0.25 * y0 + 0.75 * y1)]
        corners = cut
    return corners


def _noise(x: Field, y: Field, cell: float, octaves: int, seed: int) -> Field:
    """Fractal noise, about 0 to 1."""
    return _fractal(x, y, cell, octaves, seed, ridged=False)


def _ridges(x: Field, y: Field, cell: float, octaves: int, seed: int) -> Field:
    """Fractal noise with sharp crests, about 0 to 1."""
    return _fractal(x, y, cell, octaves, seed, ridged=True)


def _fractal(x: Field, y: Field, cell: float, octaves: int, seed: int, *, ridged: bool) -> Field:
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
    """Perlin's noise, about -0.5 to 0.5, at coordinates that broadcast."""
    column, row = np.floor(x).astype(np.int32), np.floor(y).astype(np.int32)
    fx, fy = (x - column).astype(np.float32), (y - row).astype(np.float32)
    u, v = fx * fx * fx * (fx * (fx * 6 - 15) + 10), fy * fy * fy * (fy * (fy * 6 - 15) + 10)

    def corner(dx: int, dy: int) -> Field:
        index = ((column + dx) * 73 + (row + dy) * 1193) & 4095
        return gx[index] * (fx - dx) + gy[index] * (fy - dy)

    low = corner(0, 0) * (1 - u) + corner(1, 0) * u
    high = corner(0, 1) * (1 - u) + corner(1, 1) * u
    return (low * (1 - v) + high * v) * 0.8


def _relief_light(relief: Field, tall: Field | float, pixel: float) -> Field:
    """How bright ground of this relief is, 0 to 1, with the sun at the upper left."""
    down, right = np.gradient(relief * (tall / pixel))
    normal = 1 / np.sqrt(1 + right**2 + down**2)
    return np.clip((0.45 * down - 0.55 * right + 0.70) * normal, 0, 1)
