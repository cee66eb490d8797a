"""Rewards of several prompts over time: a plot, and a video with the curves below the frames."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.media.videos import StripVideo, draw_curves
from vlmrm_gym.terminal import printable

WINDOW = 300
"""The most frames whose rewards the curves of a video show, up to the current one."""
MIN_WIDTH, MAX_SIDE = 320, 1280
"""Limits of the drawn frames in pixels: smaller and larger ones are scaled. Curves below need some width."""


def plot_rewards(path: Path, labels: Sequence[str], rewards: NDArray[np.floating[Any]], fps: float | None) -> None:
    """Draw rewards over time, one line each.

    Args:
        path: The file, such as a PNG.
        labels: Names of the C columns.
        rewards: (T, C).
        fps: Frames per second; None draws over frame numbers.

    Raises:
        OSError: The file could not be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    lines = axis.plot(
        np.arange(len(rewards)) / (fps or 1), rewards, marker="." if len(rewards) < 100 else "", linewidth=1.2
    )
    axis.set(xlabel="frame" if fps is None else "seconds", ylabel="reward")
    axis.margins(x=0.01)
    axis.grid(alpha=0.3)
    # A legend leaves out labels that begin with an underscore.
    legend = figure.legend(
        lines, [f'"{printable(label)}"' for label in labels], loc="outside lower left", frameon=False
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    figure.savefig(path, dpi=120)


class RewardVideo:
    """Draws frames above the curves of their rewards, as they come.

    The first frame sets the size; others are scaled to it and padded. The curves show the last rewards, `WINDOW`
    at most, scaled to the range of all so far.

    Args:
        video: The file.
        labels: Names of the C columns.
        count: Expected number of frames; None if unknown.
    """

    def __init__(self, video: StripVideo, labels: Sequence[str], count: int | None) -> None:
        self._video, self._labels, self._steps = video, labels, min(count or WINDOW, WINDOW)
        self._window: deque[NDArray[np.floating[Any]]] = deque(maxlen=self._steps)
        self._low, self._high = np.inf, -np.inf
        self._size: tuple[int, int] | None = None

    def add(self, frame: NDArray[np.uint8], rewards: NDArray[np.floating[Any]]) -> None:
        """Append a frame, uint8 (H, W, 3), and its rewards, (C,)."""
        from PIL import Image, ImageOps

        self._size = self._size or drawn_size(*frame.shape[:2])
        self._window.append(rewards)
        self._low, self._high = min(self._low, rewards.min()), max(self._high, rewards.max())
        picture = np.asarray(ImageOps.pad(Image.fromarray(frame), self._size))
        window = np.stack(self._window)
        curves = draw_curves(self._size[0], window, self._low, self._high, self._steps, self._labels)
        self._video.add(picture, curves)


def drawn_size(height: int, width: int) -> tuple[int, int]:
    """Width and height, even, at which frames of a size are drawn."""
    scale = min(max(1, MIN_WIDTH / width), MAX_SIDE / max(height, width))
    return max(MIN_WIDTH, round(width * scale / 2) * 2), max(2, round(height * scale / 2) * 2)


@contextmanager
def reward_video(path: Path, labels: Sequence[str], fps: float, count: int | None) -> Iterator[RewardVideo]:
    """Open a video for writing; closed, it can be played also after an interruption.

    Args:
        path: The file, ending in ".mp4".
        labels: Names of the columns.
        fps: Frames per second.
        count: Expected number of frames; None if unknown.
    """
    with closing(StripVideo(path, fps)) as video:
        yield RewardVideo(video, labels, count)
