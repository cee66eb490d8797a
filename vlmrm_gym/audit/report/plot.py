"""Charts as SVG inside of HTML. Colours are classes of the page's style sheet, so that they follow its theme."""

from collections.abc import Callable

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike

WIDTH = 400
"""Of every chart, in units of which a letter has 12."""
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 8, 24
"""Margins around the area of the data; numbers at the ticks stand in them."""


class Plot:
    """Axes, and what is drawn on them, in the order of the calls.

    Args:
        x: Lowest and highest value of the horizontal axis, finite. A range without width is widened.
        y: The same of the vertical axis.
        height: Of the chart, in units of `WIDTH`.
        x_ticks: The most intervals between ticks.
        y_ticks: The same; 0 draws no vertical axis.
        y_format: Text of a number at the vertical axis.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        height: int = 230,
        x_ticks: int = 6,
        y_ticks: int = 5,
        y_format: Callable[[float], str] | None = None,
    ) -> None:
        self._x, self._y, self._height = _widen(*x), _widen(*y), height
        self._left = LEFT if y_ticks else RIGHT
        self._marks: list[Markup] = []
        bottom = height - BOTTOM
        for value in _ticks(*self._y, y_ticks) if y_ticks else ():
            at = self._at_y(value)
            text = (y_format or _number)(value)
            self._add('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>', self._left, WIDTH - RIGHT, at, at)
            self._add('<text class="y-tick" x="{}" y="{}">{}</text>', self._left - 6, _round(at) + 4, text)
        for value in _ticks(*self._x, x_ticks):
            at = self._at_x(value)
            self._add('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>', at, at, bottom, bottom + 4)
            self._add('<text class="x-tick" x="{}" y="{}">{}</text>', at, bottom + 17, _number(value))
        self._add('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>', self._left, WIDTH - RIGHT, bottom, bottom)

    def line(self, x: ArrayLike, y: ArrayLike, css: str) -> None:
        """Draw a line through points, (N,) each."""
        points = zip(self._at_x(x).tolist(), self._at_y(y).tolist(), strict=True)
        self._add('<polyline class="{}" points="{}"/>', css, " ".join(f"{a:g},{b:g}" for a, b in points))

    def bars(self, edges: ArrayLike, heights: ArrayLike, css: str) -> None:
        """Draw bars from 0 to `heights`, (N,), between `edges`, (N + 1,). Bars without height are left out."""
        at, top, zero = self._at_x(edges), self._at_y(heights), self._at_y(0.0)
        for left, right, end in zip(at[:-1], at[1:], top, strict=True):
            if end != zero:
                size = _round(max(right - left - 1, 0.5)), _round(abs(end - zero))
                self._add('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>', css, left, min(end, zero), *size)

    def span(self, low: float, high: float, css: str) -> None:
        """Shade the area between two values of the horizontal axis."""
        left, right = self._at_x([low, high])
        height = self._height - TOP - BOTTOM
        self._add('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>', css, left, TOP, right - left, height)

    def vertical(self, x: float, css: str) -> None:
        """Draw a vertical line over the whole height."""
        at = self._at_x(x)
        self._add('<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>', css, at, at, TOP, self._height - BOTTOM)

    def horizontal(self, y: float, css: str) -> None:
        """Draw a horizontal line over the whole width."""
        at = self._at_y(y)
        self._add('<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>', css, self._left, WIDTH - RIGHT, at, at)

    def svg(self, description: str) -> Markup:
        """The chart as an element of HTML, with a description for those who do not see it."""
        opening = Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">')
        return opening.format(WIDTH, self._height, description) + Markup("").join(self._marks) + Markup("</svg>")

    def _add(self, element: str, *values: object) -> None:
        self._marks.append(Markup(element).format(*values))

    def _at_x(self, x: ArrayLike) -> np.ndarray:
        low, high = self._x
        fraction = (np.asarray(x, dtype=np.float64) - low) / (high - low)
        return np.round(self._left + fraction * (WIDTH - RIGHT - self._left), 1)

    def _at_y(self, y: ArrayLike) -> np.ndarray:
        low, high = self._y
        fraction = (high - np.asarray(y, dtype=np.float64)) / (high - low)
        return np.round(TOP + fraction * (self._height - TOP - BOTTOM), 1)


def padded(low: float, high: float, fraction: float = 0.05) -> tuple[float, float]:
    """A range that is wider by a fraction at each end."""
    return low - fraction * (high - low), high + fraction * (high - low)


def _widen(low: float, high: float) -> tuple[float, float]:
    """The range, or one around it if it is too narrow to draw."""
    least = 1e-9 * max(abs(low), abs(high), 1e-9)
    return (low, high) if high - low > least else (low - max(abs(low), 1) / 2, high + max(abs(high), 1) / 2)


def _ticks(low: float, high: float, count: int) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    values = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    slack = 1e-9 * (high - low)
    return [float(value) for value in values if low - slack <= value <= high + slack]


def _number(value: float) -> str:
    return f"{round(value, 12) + 0.0:g}".replace("-", "\N{MINUS SIGN}")


def _round(value: ArrayLike) -> float:
    return round(float(np.asarray(value)), 1)
