"""Renders cart-pole and mountain car from their states, as Gymnasium does, at any size."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import gymnasium as gym
import numpy as np
import pygame
from numpy.typing import ArrayLike, NDArray
from pygame import gfxdraw

from vlmrm_gym.states.scene_changes import SceneChange
from vlmrm_gym.states.states import check_states

Color = tuple[int, int, int]
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
PICTURES = Path(__file__).parent / "mountain"
"""Painted by `python -m painting`."""
CAR_SIZE, WHEELBASE, WHEEL_RADIUS = (64, 32), 33.0, 5.6
AXLE_HEIGHT = 4 + WHEEL_RADIUS  # above the picture's lower edge
"""Of the photo-like car, whose picture is centred horizontally, in Gymnasium's pixels."""


class _Painter(ABC):
    """Paints on Gymnasium's 600x400 times a scale, upside down as it does: pygame's polygons are not symmetric."""

    def __init__(self, scale: int) -> None:
        self._scale = scale

    def background(self) -> pygame.Surface:
        """Paint what is behind the moving parts, 32 bits deep; white by default."""
        surface = pygame.Surface((600 * self._scale, 400 * self._scale), depth=32)
        surface.fill(WHITE)
        return surface

    @abstractmethod
    def bounds(self, state: NDArray[np.float64]) -> pygame.Rect:
        """Find a box around the moving parts whose edges cut no slanted line: pygame draws clipped lines otherwise."""

    @abstractmethod
    def paint(self, surface: pygame.Surface, state: NDArray[np.float64]) -> None:
        """Paint the moving parts."""

    def paint_in_front(self, surface: pygame.Surface) -> None:  # noqa: B027
        """Paint static parts in front of the moving ones; none by default."""


class _ClassicControlRenderer:
    """Renders the `entries` of states, float64 (state_size,), by a painter, at a multiple of 600x400, and resizes."""

    state_size: int
    entries: Sequence[int]

    def __init__(self, height: int, width: int, painter: Callable[[int], _Painter], oversampling: int = 1) -> None:
        self.height, self.width = height, width
        self._painter, self._oversampling = painter, oversampling
        self._canvas: _Canvas | None = None

    def capture(self, env: gym.Env[Any, Any]) -> NDArray[np.float64]:
        return np.array(env.unwrapped.state, dtype=np.float64)[[*self.entries]]  # pyright: ignore[reportAttributeAccessIssue]

    def render(self, states: ArrayLike, changes: Sequence[SceneChange | None] | None = None) -> NDArray[np.uint8]:
        """Render states, float64 (B, state_size): uint8 (B, height, width, 3). `changes` is ignored."""
        checked = check_states(states, self.state_size)
        if self._canvas is None:
            scale = max(self._oversampling, math.ceil(max(self.height / 400, self.width / 600)))
            self._canvas = _Canvas(self._painter(scale), self.height, self.width)
        return self._canvas.draw(checked)

    def at_size(self, render_size: Callable[[int, int], tuple[int, int]]) -> Self:
        other = copy.copy(self)  # without the canvas
        other.height, other.width = render_size(self.height, self.width)
        return other

    def is_equivalent(self, other: object) -> bool:
        return isinstance(other, _ClassicControlRenderer) and self.__getstate__() == other.__getstate__()

    def close(self) -> None:
        self._canvas = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_canvas": None}


class CartPoleRenderer(_ClassicControlRenderer):
    """Renders states of CartPole: (cart position, pole angle in radians).

    At 600x400 a frame equals Gymnasium's, pixel for pixel. A smaller frame is an area average of that one. A larger one
    is painted at a multiple of the size first, with lines one pixel wide.
    """

    state_size, entries = 2, (0, 2)

    def __init__(self, height: int, width: int) -> None:
        super().__init__(height, width, _CartPole)


class MountainCarRenderer(_ClassicControlRenderer):
    """Renders states of MountainCarContinuous: (position,). Photo-like if `textured`, else as `CartPoleRenderer`."""

    state_size, entries = 1, (0,)

    def __init__(self, height: int, width: int, *, textured: bool) -> None:
        painter, oversampling = (_Photo, 2) if textured else (_MountainCar, 1)
        super().__init__(height, width, painter, oversampling)


class _Canvas:
    """Paints and resizes a box around the moving parts of each frame; the rest is copied from a static frame."""

    def __init__(self, painter: _Painter, height: int, width: int) -> None:
        self._painter, self._background = painter, painter.background()
        self._surface = self._background.copy()
        size = self._background.get_size()
        # The smallest tiles of canvas and frame, (x, y), whose edges coincide: tiles can be resized one by one.
        shared = math.gcd(size[0], width), math.gcd(size[1], height)
        self._tile = size[0] // shared[0], size[1] // shared[1]
        self._resized_tile = width // shared[0], height // shared[1]
        # smoothscale rounds down, once per direction; what white loses is added back to every pixel.
        white = pygame.Surface(size, depth=32)
        white.fill(WHITE)
        self._rounding_loss = (0, 0, 0)
        resized = self._resize(white, white.get_rect())
        self._rounding_loss = (255 - int(resized.min()),) * 3
        painter.paint_in_front(self._surface)
        self._static_frame = np.ascontiguousarray(self._resize(self._surface, self._surface.get_rect()))

    def draw(self, states: NDArray[np.float64]) -> NDArray[np.uint8]:
        frames = np.empty((len(states), *self._static_frame.shape), dtype=np.uint8)
        frames[:] = self._static_frame
        for i, state in enumerate(states):
            box = self._align_to_tiles(self._painter.bounds(state).clip(self._surface.get_rect()))
            if not box:
                continue
            self._surface.set_clip(box)
            self._surface.blit(self._background, box, box)
            self._painter.paint(self._surface, state)
            self._painter.paint_in_front(self._surface)
            resized = self._resize(self._surface, box)
            height, width, _ = resized.shape
            left = box.x // self._tile[0] * self._resized_tile[0]
            top = len(self._static_frame) - box.y // self._tile[1] * self._resized_tile[1] - height
            frames[i, top : top + height, left : left + width] = resized
        return frames

    def _align_to_tiles(self, box: pygame.Rect) -> pygame.Rect:
        """Find the smallest box of whole tiles around a box."""
        if not box:
            return box
        (x, y), left, top = self._tile, box.left // self._tile[0], box.top // self._tile[1]
        return pygame.Rect(left * x, top * y, (-(-box.right // x) - left) * x, (-(-box.bottom // y) - top) * y)

    def _resize(self, surface: pygame.Surface, box: pygame.Rect) -> NDArray[np.uint8]:
        counts = box.w // self._tile[0], box.h // self._tile[1]
        size = counts[0] * self._resized_tile[0], counts[1] * self._resized_tile[1]
        resized = pygame.transform.smoothscale(surface.subsurface(box), size)
        resized.fill(self._rounding_loss, special_flags=pygame.BLEND_RGB_ADD)
        return pygame.surfarray.pixels3d(resized).swapaxes(0, 1)[::-1]


class _CartPole(_Painter):
    def bounds(self, state: NDArray[np.float64]) -> pygame.Rect:
        tip = pygame.math.Vector2(0, 120).rotate_rad(-state[1])
        pole = pygame.Rect(min(0, int(tip.x)), 107 + min(0, int(tip.y)), abs(int(tip.x)), abs(int(tip.y)))
        x, y, width, height = pole.inflate(20, 20).union(pygame.Rect(-27, 83, 54, 34))
        s = self._scale
        return pygame.Rect(int(self._x(state)) + x * s, y * s, width * s, height * s)

    def paint(self, surface: pygame.Surface, state: NDArray[np.float64]) -> None:
        s, x = self._scale, self._x(state)
        y, axle = 100 * s, 107.5 * s
        cart = [(-25 * s, -15 * s), (-25 * s, 15 * s), (25 * s, 15 * s), (25 * s, -15 * s)]
        _polygon(surface, [(corner[0] + x, corner[1] + y) for corner in cart], BLACK)
        pole = [(-5 * s, -5 * s), (-5 * s, 120 * s), (5 * s, 120 * s), (5 * s, -5 * s)]
        turned = [pygame.math.Vector2(corner).rotate_rad(-state[1]) for corner in pole]
        _polygon(surface, [(corner[0] + x, corner[1] + axle) for corner in turned], (202, 152, 101))
        _circle(surface, int(x), int(axle), 5 * s, (129, 132, 203))

    def paint_in_front(self, surface: pygame.Surface) -> None:
        gfxdraw.hline(surface, 0, surface.get_width(), 100 * self._scale, BLACK)

    def _x(self, state: NDArray[np.float64]) -> float:
        # Beyond this, the cart is outside the frame, and could overflow pygame's integers.
        return (float(np.clip(state[0], -4.8, 4.8)) * (600 / 4.8) + 600 / 2.0) * self._scale


class _MountainCar(_Painter):
    def __init__(self, scale: int) -> None:
        super().__init__(scale)
        self._per_unit = 600 / (0.6 - -1.2) * scale
        x, foot = self._place(0.45)
        self._flag = int(x), int(foot), 50 * scale
        self._flag_box = pygame.Rect(int(x) - scale, int(foot) - scale, 28 * scale, 53 * scale)

    def background(self) -> pygame.Surface:
        surface = super().background()
        track = [self._place(position) for position in np.linspace(-1.2, 0.6, 100)]
        pygame.draw.aalines(surface, points=track, closed=False, color=BLACK)
        return surface

    def bounds(self, state: NDArray[np.float64]) -> pygame.Rect:
        x, y = self._place(_position(state))
        box = pygame.Rect(int(x) - 42 * self._scale, int(y) - 42 * self._scale, 84 * self._scale, 84 * self._scale)
        return box.union(self._flag_box) if box.colliderect(self._flag_box) else box

    def paint(self, surface: pygame.Surface, state: NDArray[np.float64]) -> None:
        s, position = self._scale, _position(state)
        x, y = self._place(position)
        angle = math.cos(3 * position)  # Gymnasium's angle, which is not that of the slope
        body = [(-20 * s, 0), (-20 * s, 20 * s), (20 * s, 20 * s), (20 * s, 0)]
        turned = [pygame.math.Vector2(corner).rotate_rad(angle) for corner in body]
        _polygon(surface, [(corner[0] + x, corner[1] + 10 * s + y) for corner in turned], BLACK)
        for axle in ((10 * s, 0), (-10 * s, 0)):
            hub = pygame.math.Vector2(axle).rotate_rad(angle)
            _circle(surface, int(hub[0] + x), int(hub[1] + 10 * s + y), 8 * s, (128, 128, 128))

    def paint_in_front(self, surface: pygame.Surface) -> None:
        s, (x, foot, tall) = self._scale, self._flag
        gfxdraw.vline(surface, x, foot, foot + tall, BLACK)
        top = foot + tall
        _polygon(surface, [(x, top), (x, top - 10 * s), (x + 25 * s, top - 5 * s)], (204, 204, 0))

    def _place(self, position: Any) -> tuple[Any, Any]:
        """Find column and row of the track at a position, in the position's dtype."""
        return (position - -1.2) * self._per_unit, (np.sin(3 * position) * 0.45 + 0.55) * self._per_unit


class _Photo(_Painter):
    """Paints mountain car about as a photograph would show it: a car in front of the flag, and mountains."""

    def __init__(self, scale: int) -> None:
        super().__init__(scale)
        car = pygame.image.load(PICTURES / "car.png")  # premultiplied alpha
        car = pygame.transform.smoothscale(car, [side * scale for side in CAR_SIZE])
        self._car = pygame.transform.flip(car, False, True)

    def background(self) -> pygame.Surface:
        surface, picture = super().background(), pygame.image.load(PICTURES / "background.png")
        picture = pygame.transform.smoothscale(picture, surface.get_size())
        surface.blit(pygame.transform.flip(picture, False, True), (0, 0))
        return surface

    def bounds(self, state: NDArray[np.float64]) -> pygame.Rect:
        x, y, _ = self._pose(state)
        half = math.ceil(math.hypot(*CAR_SIZE) / 2 * self._scale) + 2
        return pygame.Rect(round(x) - half, round(y) - half, 2 * half, 2 * half)

    def paint(self, surface: pygame.Surface, state: NDArray[np.float64]) -> None:
        x, y, angle = self._pose(state)
        turned = pygame.transform.rotozoom(self._car, -math.degrees(angle), 1)
        corner = round(x - turned.get_width() / 2), round(y - turned.get_height() / 2)
        surface.blit(turned, corner, special_flags=pygame.BLEND_PREMULTIPLIED)

    def _pose(self, state: NDArray[np.float64]) -> tuple[float, float, float]:
        """Find column and row of the sprite's centre, and the car's angle."""
        x, y, angle = _place_car((float(np.clip(state[0], -2.1, 1.5)) + 1.2) / 0.003)  # outside the frame beyond
        up = CAR_SIZE[1] / 2 - AXLE_HEIGHT
        return (x - up * math.sin(angle)) * self._scale, (y + up * math.cos(angle)) * self._scale, angle


def _place_car(x: float) -> tuple[float, float, float]:
    """Place a car at x with both wheels on the track: x and y midway between its axles, and its angle in radians."""
    half = WHEELBASE / 2
    for _ in range(4):
        (x0, x1), (y0, y1) = _axles(x, half)
        half *= WHEELBASE / math.hypot(x1 - x0, y1 - y0)
    (x0, x1), (y0, y1) = _axles(x, half)
    return (x0 + x1) / 2, (y0 + y1) / 2, math.atan2(y1 - y0, x1 - x0)


def _axles(x: float, half: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Find the x and the y of the axles of wheels that touch the track at x - half and x + half."""
    contacts = (x - half, x + half)
    phases = [3 * (contact * 0.003 - 1.2) for contact in contacts]
    slopes = [1.35 * math.cos(phase) for phase in phases]
    ups = [WHEEL_RADIUS / math.hypot(1, slope) for slope in slopes]
    xs = [contact - slope * up for contact, slope, up in zip(contacts, slopes, ups, strict=True)]
    ys = [(math.sin(phase) * 0.45 + 0.55) / 0.003 + up for phase, up in zip(phases, ups, strict=True)]
    return (xs[0], xs[1]), (ys[0], ys[1])


def _position(state: NDArray[np.float64]) -> np.floating[Any]:
    """The position in Gymnasium's dtype, float32 after a step: another dtype can round to another pixel."""
    position = np.clip(state[0], -2.1, 1.5)  # outside the frame beyond
    single = np.float32(position)
    return single if single == position else position


def _polygon(surface: pygame.Surface, points: list[tuple[Any, Any]], color: Color) -> None:
    gfxdraw.aapolygon(surface, points, color)
    gfxdraw.filled_polygon(surface, points, color)


def _circle(surface: pygame.Surface, x: int, y: int, radius: int, color: Color) -> None:
    gfxdraw.aacircle(surface, x, y, radius, color)
    gfxdraw.filled_circle(surface, x, y, radius, color)
