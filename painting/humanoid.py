"""The textures of the humanoid: a sky with clouds, a tiled floor, and the robot's skin.

Those of cubes are strips of six faces, and functions of the direction from the centre, so they have no seams between
faces.
"""

from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from painting.procedural import Field, smoothstep, to_bytes

Picture = NDArray[np.uint8]

TILE, TILES = 0.75, 6  # a tile in metres; the floor's pattern repeats after TILES x TILES of them

WHITE, GRAPHITE, ORANGE = (0.87, 0.88, 0.89), (0.17, 0.18, 0.20), (0.90, 0.36, 0.07)
STONE, GROUT = (0.61, 0.59, 0.56), (0.40, 0.39, 0.37)
ZENITH, BLUE, HAZE = (0.16, 0.36, 0.70), (0.42, 0.62, 0.88), (0.86, 0.90, 0.94)
LAND, MIST = (0.56, 0.64, 0.70), (0.70, 0.75, 0.78)
CLOUDS_FROM = 0.077  # azimuth in turns; chooses the clouds behind a robot seen from the front


def sky() -> Picture:
    """Blue above haze, clouds that flatten towards the horizon, hills, and the floor's colour below the horizon."""
    far_floor = floor().mean(axis=(0, 1)) / 255
    x, z, back = _cube_directions(512)
    # In strips, which fit the processor's cache: nearly twice as fast.
    strips = zip(*(np.split(axis, 24) for axis in (x, back, z)), strict=True)
    return np.concatenate([to_bytes(_sky_at(x, back, z, far_floor)) for x, back, z in strips])


def _sky_at(x: Field, back: Field, z: Field, far_floor: NDArray[np.float64]) -> Field:
    azimuth = np.arctan2(-back, x) / np.float32(2 * np.pi) + np.float32(CLOUDS_FROM)
    up = np.clip(z, 0, 1)
    height = np.arctanh(np.minimum(up, 0.999)) / np.float32(2 * np.pi)  # Mercator's projection keeps clouds round

    sky = _mix(_mix(HAZE, BLUE, 1 - np.exp(-up / 0.13)), ZENITH, up**0.8)
    if z.max() > 0.01:
        thickness = _lookup(_noise(), azimuth, 2.2 * height)
        above = _lookup(_noise(), azimuth, 2.2 * height + np.float32(0.01))
        cover = smoothstep(-0.3, 1.5, thickness) * smoothstep(0.01, 0.09, up) * (1 - smoothstep(0.75, 0.97, up))
        cloud = _mix((0.70, 0.75, 0.82), (1.0, 1.0, 1.0), smoothstep(-0.9, 0.7, thickness - above))
        sky = _mix(sky, cloud, 0.92 * cover)

    ridge = 0.018 + 0.007 * _lookup(_noise(), azimuth, np.float32(0.37))
    sky = _mix(sky, _mix(MIST, LAND, smoothstep(0.0, 0.02, z)), 1 - smoothstep(-0.002, 0.002, z - ridge))
    return _mix(sky, far_floor, smoothstep(0.0, 0.06, -z))


@cache
def floor() -> Picture:
    """Stone tiles with random tint and grain, and grout between them."""
    rng = np.random.default_rng(1)
    return np.vstack([np.hstack([_tile(rng) for _ in range(TILES)]) for _ in range(TILES)])


def _tile(rng: np.random.Generator) -> Picture:
    size = 170
    position = (np.arange(size, dtype=np.float32) + 0.5) / size * TILE
    to_edge = np.minimum(position, TILE - position)
    edge = np.minimum(to_edge[:, None], to_edge)
    top, left = rng.integers(len(_noise()) - size, size=2)
    grain = _noise()[top : top + size, left : left + size] + 0.6 * rng.standard_normal((size, size), dtype=np.float32)
    tint = rng.normal(0, (0.007, 0.004, 0.009)) + rng.normal(0, 0.025)
    worn = 0.9 + 0.1 * smoothstep(0.004, 0.03, edge)
    stone = (STONE + tint).astype(np.float32) + 0.02 * grain[..., None]
    return to_bytes(_mix(GROUT, stone * worn[..., None], smoothstep(0.003, 0.008, edge)))


def shell() -> Picture:
    """Brushed white metal in panels, with dark sockets at the ends of a capsule."""
    around, along = _capsule_coordinates()
    end = np.abs(along)
    metal = np.asarray(WHITE, dtype=np.float32) + 0.018 * _brushed(around, along)[..., None]
    seams = np.maximum(_line(end - 0.86, 0.03), _line(np.abs(around) - 0.25, 0.006) * (end < 0.86))
    panel = _mix(metal, (0.42, 0.43, 0.45), 0.9 * seams)
    return to_bytes(_mix(panel, GRAPHITE, smoothstep(1.35, 1.45, end)))


def limb() -> Picture:
    """Orange sleeves between dark joints."""
    around, along = _capsule_coordinates()
    end = np.abs(along)
    sleeve = np.asarray(ORANGE, dtype=np.float32) + 0.02 * _brushed(around, along)[..., None]
    sleeve = _mix(sleeve, (0.35, 0.13, 0.04), 0.9 * _line(end - 0.7, 0.03))
    return to_bytes(_mix(sleeve, GRAPHITE, smoothstep(0.95, 1.0, end)))


def joint() -> Picture:
    """Graphite with ribs, like a rubber bellows."""
    around, along = _capsule_coordinates()
    ribs = 0.03 * np.cos(2 * np.pi * 4 * np.arctan(along)) + 0.012 * _brushed(around, along)
    return to_bytes(np.asarray(GRAPHITE, dtype=np.float32) + ribs[..., None])


def head() -> Picture:
    """A white helmet with a dark visor in front (+x), ears and a neck."""
    x, y, z = _cube_directions(128)
    around, along = _capsule_coordinates()
    helmet = np.asarray(WHITE, dtype=np.float32) + 0.018 * _brushed(around, along)[..., None]
    helmet = _mix(helmet, (0.42, 0.43, 0.45), 0.9 * np.maximum(_line(y, 0.02), _line(z - 0.6, 0.02)))
    ears = np.hypot(x + 0.05, z)
    helmet = _mix(helmet, ORANGE, 1 - smoothstep(0.30, 0.34, ears))
    helmet = _mix(helmet, GRAPHITE, np.maximum(1 - smoothstep(0.20, 0.24, ears), smoothstep(0.7, 0.76, -z)))
    # A rounded rectangle, by its signed distance.
    beside, over = np.abs(2 * np.pi * around) - 0.85, np.abs(np.arcsin(z) - 0.06) - 0.20
    distance = np.hypot(np.maximum(beside, 0), np.maximum(over, 0)) + np.minimum(np.maximum(beside, over), 0) - 0.22
    glass = _mix((0.03, 0.04, 0.06), (0.20, 0.30, 0.42), smoothstep(0.0, 0.45, z))
    helmet = _mix(helmet, GRAPHITE, 1 - smoothstep(0.03, 0.06, distance))
    return to_bytes(_mix(helmet, glass, 1 - smoothstep(-0.02, 0.02, distance)))


# ---------------------------------------------------------------------------------------------------------------------


def _cube_directions(size: int) -> tuple[Field, Field, Field]:
    """Unit vectors x, y, z of a cube map's texels, float32 (6 * size, size) each; faces and axes in OpenGL's order.

    They are in a geom's frame. MuJoCo turns its skybox: there they are the world's x, -y and z as x, z, y.
    """
    at = (np.arange(size, dtype=np.float32) + 0.5) / size * 2 - 1
    down, right = np.meshgrid(at, at, indexing="ij")
    one = np.ones_like(right)
    faces = (
        (one, -down, -right),
        (-one, -down, right),
        (right, one, down),
        (right, -one, -down),
        (right, -down, one),
        (-right, -down, -one),
    )
    x, y, z = (np.concatenate(parts) for parts in zip(*faces, strict=True))
    length = np.sqrt(x * x + y * y + z * z)
    return x / length, y / length, z / length


@cache
def _capsule_coordinates() -> tuple[Field, Field]:
    """Angle around the axis in turns, [-1/2, 1/2], 0 in front; and position along it, [-1, 1] between the caps."""
    x, y, z = _cube_directions(128)
    return np.arctan2(y, x) / np.float32(2 * np.pi), z / np.hypot(x, y)


@cache
def _noise() -> Field:
    """Periodic fractal noise with mean 0 and standard deviation 1."""
    size, rng = 1024, np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(size, 1 / size)[:, None], np.fft.rfftfreq(size, 1 / size)).astype(np.float32)
    largest = 5  # clouds per period; unbounded, one cloud would cover half of the sky
    spectrum = np.fft.rfft2(rng.standard_normal((size, size), dtype=np.float32))
    spectrum *= np.hypot(frequency, largest) ** -1.75
    spectrum[0, 0] = 0
    noise = np.fft.irfft2(spectrum, s=(size, size))
    return (noise / noise.std()).astype(np.float32)


def _brushed(around: Field, along: Field) -> Field:
    """Noise stretched around the axis; its halves are mirrored, so there is no seam at the back."""
    return _lookup(_noise(), np.abs(around) / 8, np.arctan(along))


def _lookup(picture: Field, x: Field, y: Field | np.floating) -> Field:
    """Bilinear lookup in a periodic picture; x and y are in periods."""
    size = len(picture)
    x, y = x * np.float32(size), y * np.float32(size)
    left, top = np.floor(x), np.floor(y)
    across, down = x - left, y - top
    column, row = left.astype(np.int32), top.astype(np.int32)
    columns, rows = (column % size, (column + 1) % size), (row % size, (row + 1) % size)
    upper = picture[rows[0], columns[0]] * (1 - across) + picture[rows[0], columns[1]] * across
    lower = picture[rows[1], columns[0]] * (1 - across) + picture[rows[1], columns[1]] * across
    return upper * (1 - down) + lower * down


def _line(distance: Field, width: float) -> Field:
    """1 where the distance is 0, 0 beyond a width."""
    return 1 - smoothstep(0.4 * width, width, np.abs(distance))


def _mix(first: ArrayLike, second: ArrayLike, share: Field | float) -> Field:
    """Linear interpolation of colours: `first` where the share is 0, `second` where it is 1."""
    first, second = np.asarray(first, dtype=np.float32), np.asarray(second, dtype=np.float32)
    return first + (second - first) * np.asarray(share, dtype=np.float32)[..., None]
