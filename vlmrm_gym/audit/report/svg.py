"""Charts of matplotlib as SVG inside of HTML: their colours are those of the style sheet, and follow its theme."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 400
"""Of every chart, in units of which a letter has 12."""
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 8, 24
"""Margins around the area of the data; numbers at the ticks stand in them."""
DASHES = ((), (7, 3), (2, 3), (9, 3, 2, 3), (4, 2), (12, 4))
SERIES = 6
"""Colours of curves in the style sheet."""


@dataclass(frozen=True)
class Style:
    """How a line or an area looks, in a chart and in its legend."""

    color: str
    """The name of a colour in the style sheet."""
    width: float = 2
    dashes: tuple[float, ...] = ()
    opacity: float = 1
    filled: bool = False

    @property
    def css(self) -> str:
        """For an element of SVG."""
        if self.filled:
            return f"fill: var(--{self.color}); opacity: {self.opacity}"
        dashes = " ".join(map(str, self.dashes)) or "none"
        return f"stroke: var(--{self.color}); stroke-width: {self.width}; stroke-dasharray: {dashes}"

    @property
    def line(self) -> dict[str, Any]:
        """For a line of matplotlib."""
        return {
            "color": colors()[self.color],
            "linewidth": self.width,
            "linestyle": (0, tuple(dash / self.width for dash in self.dashes)) if self.dashes else "-",
            "alpha": self.opacity,
            "clip_on": False,
        }

    @property
    def area(self) -> dict[str, Any]:
        """For bars and spans of matplotlib."""
        return {"color": colors()[self.color], "alpha": self.opacity, "linewidth": 0, "clip_on": False}


def curve_style(number: int) -> Style:
    """The style of a curve, by its number from 0: 36 curves differ in colour or dashes."""
    return Style(f"series-{number % SERIES + 1}", dashes=DASHES[(number + number // SERIES) % len(DASHES)])


@cache
def colors() -> dict[str, str]:
    """The colours of the light theme by their names in the style sheet."""
    css = (Path(__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css[: css.index("}")]))


def make_axes(
    x: tuple[float, float],
    y: tuple[float, float],
    *,
    height: int = 230,
    x_ticks: int = 6,
    y_ticks: int = 5,
    y_format: Callable[[float], str] | None = None,
) -> "Axes":
    """Axes of matplotlib in the report's design.

    Args:
        x: Lowest and highest value of the horizontal axis, finite. A range without width is widened.
        y: The same of the vertical axis.
        height: Of the chart, in units of `WIDTH`.
        x_ticks: The most intervals between ticks.
        y_ticks: The same; 0 draws no vertical axis.
        y_format: Text of a number at the vertical axis.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    left = LEFT if y_ticks else RIGHT
    area = (left / WIDTH, BOTTOM / height, 1 - (left + RIGHT) / WIDTH, 1 - (TOP + BOTTOM) / height)
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    axes = figure.add_axes(area, frameon=False, xlim=_widen(*x), ylim=_widen(*y))
    for axis, ticks, form in ((axes.xaxis, x_ticks, None), (axes.yaxis, y_ticks, y_format)):
        axis.set_major_locator(MaxNLocator(max(ticks, 1), steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda value, _, form=form or _number: form(value)))
    axes.tick_params(length=0, labelsize=12, labelcolor=colors()["text"], pad=6)
    axes.set_axisbelow(True)
    if y_ticks:
        axes.yaxis.grid(color=colors()["rule"], linewidth=1, clip_on=False)
    else:
        axes.yaxis.set_visible(False)
    axes.axhline(axes.get_ylim()[0], **Style("muted", 1).line)
    return axes


def draw_bars(axes: "Axes", edges: NDArray[Any], heights: NDArray[Any], style: Style) -> None:
    """Draw bars from 0 to `heights`, (N,), between `edges`, (N + 1,). Bars without height are left out."""
    shown = heights != 0
    axes.bar(edges[:-1][shown], heights[shown], 0.9 * np.diff(edges)[shown], align="edge", **style.area)


def to_svg(axes: "Axes", description: str) -> Markup:
    """A chart as an element of HTML, with a description for those who do not see it."""
    import matplotlib as mpl

    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.fonttype": "none"}):
        figure: Any = axes.figure  # matplotlib types it as a part of a figure, too
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    _, _, body = svg[svg.index("<svg") :].partition(">")
    body = re.sub(r'<defs>.*?</defs>|<!--.*?-->| id="[^"]*"', "", body, flags=re.DOTALL)
    names = {color: name for name, color in colors().items()}
    body = re.sub("|".join(names), lambda found: f"var(--{names[found[0]]})", body)
    size = re.search(r'viewBox="0 0 ([\d. ]+)"', svg)
    assert size is not None
    opening = Markup('<svg class="plot" viewBox="0 0 {}" role="img" aria-label="{}">')
    return opening.format(size[1], description) + Markup(re.sub(r"\s*\n\s*", "", body))


def padded(low: float, high: float, fraction: float = 0.05) -> tuple[float, float]:
    """A range that is wider by a fraction at each end."""
    return low - fraction * (high - low), high + fraction * (high - low)


def _widen(low: float, high: float) -> tuple[float, float]:
    """The range, or one around it if it is too narrow to draw."""
    least = 1e-9 * max(abs(low), abs(high), 1e-9)
    return (low, high) if high - low > least else (low - max(abs(low), 1) / 2, high + max(abs(high), 1) / 2)


def _number(value: float) -> str:
    return f"{round(value, 12) + 0.0:g}".replace("-", "\N{MINUS SIGN}")
