"""Draws rewards: curves and texts below the frames of a video, and a plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.terminal import printable

PLOT_HEIGHT = 72
"""Height of the reward plot under the frames, in pixels."""
LINE_HEIGHT = 16
"""Height added per extra curve, in pixels."""
COLORS = ((255, 196, 84), (96, 178, 255), (126, 217, 87), (255, 128, 171), (186, 146, 255), (77, 208, 195))
"""Of the curves, in order."""
STRIP = 20
"""Height of a line of text below the frames, in pixels."""
MIN_WIDTH, MAX_SIDE = 320, 1280
"""Limits of the drawn frames in pixels: smaller and larger ones are scaled. Curves below need some width."""
_BACKGROUND, _TEXT = (24, 26, 32), (236, 236, 236)


def draw_curves(
    width: int, rewards: NDArray[np.floating[Any]], low: float, high: float, steps: int, titles: Sequence[str]
) -> NDArray[np.uint8]:
    """Draw rewards so far, (T, C), as curves of different colours below a line of text for each.

    `low` is the reward at the bottom, `high` that at the top; `steps` rewards fill the width.

    Returns:
        uint8 (PLOT_HEIGHT + LINE_HEIGHT (C - 1), width, 3).
    """
    from PIL import Image, ImageDraw

    top = LINE_HEIGHT * (len(titles) - 1)
    image = Image.new("RGB", (width, PLOT_HEIGHT + top), _BACKGROUND)
    draw = ImageDraw.Draw(image)
    x = 8 + (width - 16) * np.arange(len(rewards)) / max(steps - 1, 1)
    for i, (title, values) in enumerate(zip(titles, rewards.T, strict=True)):
        color = COLORS[i % len(COLORS)]
        label, title = f"reward {values[-1]:+.3f}", " ".join(title.split())
        while title and draw.textlength(title) > width - 32 - draw.textlength(label):
            title = title[:-1]
        draw.text((8, 6 + LINE_HEIGHT * i), title, fill=_TEXT)
        draw.text((width - 8 - draw.textlength(label), 6 + LINE_HEIGHT * i), label, fill=color)
        y = PLOT_HEIGHT + top - 8 - (PLOT_HEIGHT - 34) * (values - low) / max(high - low, 1e-6)
        if len(values) > 1:
            draw.line(list(zip(x.tolist(), y.tolist(), strict=True)), fill=color, width=2)
        draw.circle((x[-1], y[-1]), 3, fill=(255, 255, 255))
    return np.asarray(image)


def draw_text(width: int, text: str) -> NDArray[np.uint8]:
    """A line of text, uint8 (STRIP, width, 3)."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (width, STRIP), _BACKGROUND)
    ImageDraw.Draw(image).text((6, 4), text, fill=_TEXT)
    return np.asarray(image)


def drawn_size(height: int, width: int) -> tuple[int, int]:
    """Width and height, even, at which frames of a size are drawn."""
    scale = min(max(1, MIN_WIDTH / width), MAX_SIDE / max(height, width))
    return max(MIN_WIDTH, round(width * scale / 2) * 2), max(2, round(height * scale / 2) * 2)


def fit_frame(frame: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """A frame, uint8 (H, W, 3), scaled and padded to a width and height."""
    from PIL import Image, ImageOps

    return np.asarray(ImageOps.pad(Image.fromarray(frame), size))


def plot_rewards(
    path: Path, labels: Sequence[str], rewards: NDArray[np.floating[Any]], seconds: Sequence[float] | None
) -> None:
    """Draw rewards (T, C) into a PNG file, a line for each column, over T times or over frame numbers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.8), layout="constrained")
    axis = figure.subplots()
    times = range(len(rewards)) if seconds is None else seconds
    lines = axis.plot(times, rewards, marker="." if len(rewards) < 100 else "", linewidth=1.2)
    axis.set(xlabel="frame" if seconds is None else "seconds", ylabel="reward")
    axis.margins(x=0.01)
    axis.grid(alpha=0.3)
    # A legend leaves out labels that begin with an underscore.
    legend = figure.legend(
        lines, [f'"{printable(label)}"' for label in labels], loc="outside lower left", frameon=False
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    figure.savefig(path, dpi=120)
