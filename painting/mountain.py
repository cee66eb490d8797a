"""The photo-like mountain car scene without the car: sky, mountains, trees, the track, and the flag.

Coordinates are those of Gymnasium's drawing: x in [0, 600] to the right, y in [0, 400] upwards. `x` is float32 (1, W),
`y` float32 (H, 1), and `pixel` the size of a pixel in those units.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from painting.procedural import Field, blend, coverage, fractal_noise, hillshade, rgb, smoothstep, to_bytes


def track_height(x: ArrayLike) -> NDArray[np.float64]:
    """The y of the track at x."""
    return (np.sin(3 * (np.asarray(x) * 0.003 - 1.2)) * 0.45 + 0.55) / 0.003


def background(height: int, width: int) -> NDArray[np.uint8]:
    """The scene without the car: uint8 (height, width, 3), stretched if the size is not 3:2."""
    x = ((np.arange(width, dtype=np.float32) + 0.5) * (600 / width))[None, :]
    y = (400 - (np.arange(height, dtype=np.float32) + 0.5) * (400 / height))[:, None]
    pixel = max(600 / width, 400 / height)
    picture = _sky(x, y)
    # From far to near, with less and less haze.
    for seed, base, swing, cell, haze in ((11, 190, 130, 150, 0.62), (23, 140, 105, 120, 0.42)):
        picture = _range(picture, x, y, pixel, seed, base, swing, cell, haze)
    picture = _forest(picture, x, y, pixel)
    picture = _foreground(picture, x, y, pixel)
    picture = _flag(picture, x, y, pixel)
    return to_bytes(picture)


def _sky(x: Field, y: Field) -> Field:
    """A blue gradient with clouds, brighter around the sun at the upper left."""
    up = np.clip((y - 60) / 340, 0, 1)[..., None] + np.zeros_like(x)[..., None]
    sky = blend(rgb(0.86, 0.90, 0.93), rgb(0.20, 0.44, 0.76), up**0.85)
    distance = 330 * np.log(y + 40)  # clouds near the horizon are farther away, and flatter
    here, sunwards = fractal_noise(x, distance, 170, 7, seed=5), fractal_noise(x - 7, distance + 9, 170, 7, seed=5)
    density = smoothstep(0.50, 0.70, here)
    light = np.clip(0.86 + 2.2 * (here - sunwards), 0.62, 1.0)[..., None]
    cloud = blend(rgb(0.62, 0.68, 0.76), rgb(1.0, 0.99, 0.97), (light - 0.62) / 0.38)
    glow = np.exp(-(((x - 120) / 190) ** 2) - ((y - 300) / 170) ** 2)[..., None]
    sky = sky + 0.16 * glow * rgb(1.0, 0.93, 0.78)
    return blend(sky, cloud, (0.93 * density * smoothstep(90, 190, y))[..., None])


def _range(
    picture: Field, x: Field, y: Field, pixel: float, seed: int, base: float, swing: float, cell: float, haze: float
) -> Field:
    """The picture with a range of far mountains in front."""
    line = base + swing * (fractal_noise(x, np.zeros_like(y[:1]), cell, 7, seed, ridged=True) - 0.45)
    relief = fractal_noise(x + 0.35 * y, y * 0.8, 70, 6, seed + 1, ridged=True)
    light = hillshade(relief, 34, pixel)
    snow = smoothstep(-14, 16, y - 215 + 70 * (relief - 0.5))[..., None]
    ground = blend(rgb(0.33, 0.36, 0.38), rgb(0.95, 0.96, 0.98), snow)
    ground = ground * (0.35 + 0.75 * light)[..., None]
    depth = np.clip(haze + (1 - haze) * 0.75 * smoothstep(20, 130, line - y), 0, 1)[..., None]
    ground = blend(ground, rgb(0.70, 0.79, 0.88), depth)
    return blend(picture, ground, np.clip(0.5 + (line - y) / pixel, 0, 1)[..., None])


def _forest(picture: Field, x: Field, y: Field, pixel: float) -> Field:
    """The picture with two rows of conifers at the bottom of the valley in front."""
    for seed, base, spacing, tall, tint, haze in (
        (41, 92, 4.3, 15.0, (0.17, 0.27, 0.22), 0.42),
        (43, 66, 5.9, 20.0, (0.10, 0.20, 0.12), 0.16),
    ):
        random = np.random.default_rng(seed)
        ground = base + 34 * (fractal_noise(x, np.zeros_like(y[:1]), 90, 4, seed) - 0.5)
        line = ground + 0.3 * tall
        for trunk in np.arange(0, 600, spacing) + random.uniform(-2, 2, len(np.arange(0, 600, spacing))):
            height, half = tall * random.uniform(0.55, 1.1), tall * random.uniform(0.14, 0.2)
            distance = np.abs(x - trunk) / half
            line = np.maximum(line, np.where(distance < 1, ground + height * (1 - distance) - 2, 0))
        texture = fractal_noise(1.7 * x, 0.6 * y, 14, 5, seed + 1, ridged=True)
        tree = rgb(*tint) * (0.55 + 0.9 * texture)[..., None]
        tree = blend(tree, rgb(0.62, 0.73, 0.80), haze + 0.25 * smoothstep(0, 60, line - y)[..., None])
        picture = blend(picture, tree, np.clip(0.5 + (line - y) / pixel / 2, 0, 1)[..., None])
    return picture


def _foreground(picture: Field, x: Field, y: Field, pixel: float) -> Field:
    """The picture with the mountain that has the track in front."""
    top = track_height(x).astype(np.float32)
    slope = (1.35 * np.cos(3 * (x * 0.003 - 1.2))).astype(np.float32)
    below = (top - y) / np.hypot(1, slope)  # approximate distance to the track

    bulk = fractal_noise(x + 0.25 * y, y, 110, 8, seed=61, ridged=True)
    grain = fractal_noise(x, y, 9, 5, seed=67)
    rough = fractal_noise(x, y, 60, 7, seed=83)
    cracks = smoothstep(0.80, 0.97, fractal_noise(x + 0.5 * y, 0.7 * y, 34, 5, seed=89, ridged=True))

    strata = fractal_noise(x * 0.35, y + 0.3 * x, 16, 5, seed=71)
    rock = blend(rgb(0.33, 0.31, 0.30), rgb(0.66, 0.62, 0.57), smoothstep(0.25, 0.75, strata)[..., None])
    rock = rock * (1 - 0.45 * cracks + 0.5 * (grain - 0.5))[..., None]
    meadow = smoothstep(0.3, 0.7, fractal_noise(x, y, 40, 7, seed=73))
    grass = blend(rgb(0.17, 0.25, 0.09), rgb(0.52, 0.55, 0.25), meadow[..., None])
    grass = grass * (0.60 + 0.80 * fractal_noise(x, y, 3, 3, seed=79))[..., None]

    is_grass = smoothstep(0.42, 0.56, 0.98 - y / 300 + 1.3 * (rough - 0.5) - 0.7 * (bulk - 0.5) - 0.16 * np.abs(slope))
    is_snow = smoothstep(-8, 8, y - 268 + 190 * (rough - 0.5) + 150 * (bulk - 0.5) + 60 * (grain - 0.5))
    light = hillshade(bulk + 0.12 * grain + 0.06 * is_grass * meadow, 40 - 14 * is_snow, pixel)
    ground = blend(rock, grass, is_grass[..., None])
    ground = blend(ground, rgb(0.90, 0.90, 0.91), is_snow[..., None])

    # Warm sunlight, and blue skylight in the shadows.
    sun = rgb(0.98, 0.93, 0.84) * light[..., None]
    ground = ground * (sun + rgb(0.20, 0.24, 0.32) * (1 + 0.3 * is_snow)[..., None])
    ground = ground * (1 - 0.25 * smoothstep(40, 260, below))[..., None]
    # A bright path along the top separates the mountain from what is behind it.
    path = rgb(0.60, 0.50, 0.37) * (0.72 + 0.5 * grain)[..., None]
    ground = blend(ground, path, (0.9 * (1 - smoothstep(3.2, 5.6, below + 2.4 * (grain - 0.5))))[..., None])
    ground = ground * (1 - 0.35 * np.exp(-(((below - 6) / 2.2) ** 2)))[..., None]
    return blend(picture, ground, np.clip(0.5 + below / pixel, 0, 1)[..., None])


def _flag(picture: Field, x: Field, y: Field, pixel: float) -> Field:
    """The picture with a yellow flag on a pole at the goal."""
    foot = float(track_height(550.0))
    pole = coverage(x, 548.6, 551.4, pixel) * coverage(y, foot - 3, foot + 60, pixel)
    metal = blend(rgb(0.30, 0.31, 0.33), rgb(0.93, 0.94, 0.95), np.exp(-(((x - 549.6) / 0.8) ** 2))[..., None])
    along = np.clip((x - 551) / 38, 0, 1)
    wave = np.sin(along * 7.2 + 0.4)
    middle = foot + 46 + 2.2 * wave * along - 3 * along
    cloth = coverage(x, 551, 589, pixel) * coverage(y - middle, -11.5, 11.5, pixel)
    yellow = rgb(1.0, 0.84, 0.04) * (0.90 + 0.16 * np.cos(along * 7.2 + 0.4) + 0.006 * (y - middle))[..., None]
    picture = blend(picture, metal, pole[..., None])
    return blend(picture, np.clip(yellow, 0, 1), cloth[..., None])
