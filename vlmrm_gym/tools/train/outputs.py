"""Draws a run's learning curve, and writes TensorBoard events, also on a full disk and when resumed."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.logger import TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter

from vlmrm_gym._util.files import check_space

_EVENTS_SIZE = 2**16
"""More than the events of one write take, in bytes."""
_TITLES = {
    "vlm_return": "VLM return",
    "task_return": "Task return (not shown to the agent)",
    "success": "Success (fraction of episodes)",
    "success_fraction": "Success (fraction of steps)",
}


class TensorBoardWriter(TensorBoardOutputFormat):
    """A TensorBoard writer that can purge events from a step on, and writes nothing while the disk is full."""

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        # TensorBoard reads files in the order of their names, which begin with the second and end with a counter:
        # within a second, file 10 would be read before file 9. So two files never begin in the same second.
        parts = (path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*.*"))
        newest = max((int(part) for part in parts if part.isdecimal()), default=0)
        time.sleep(min(max(newest + 1 - time.time(), 0), 1))
        check_space(folder, _EVENTS_SIZE)
        self._folder, self._is_closed = folder, False
        self.writer = SummaryWriter(str(folder), purge_step=purge_step)

    def write(self, *args: Any, **kwargs: Any) -> None:
        """Write, or raise an OSError if there is no room."""
        check_space(self._folder, _EVENTS_SIZE)
        super().write(*args, **kwargs)

    def close(self) -> None:
        """Close, even if the last events cannot be written."""
        with suppress(OSError):
            super().close()


def plot_learning_curve(rows: Sequence[Mapping[str, float]], path: Path, *, title: str) -> None:
    """Draw returns and success, of which episodes' comes first, against steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [name for name in _TITLES if not rows or any(name in row for row in rows)][:3]
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, name in zip(figure.subplots(1, len(names)), names, strict=True):
        steps, values = np.reshape([(row["step"], row[name]) for row in rows if name in row], (-1, 2)).T
        smooth = [np.mean(values[max(0, i - 9) : i + 1]) for i in range(len(values))]
        axis.plot(steps, values, ".-", alpha=0.3, linewidth=1)
        axis.plot(steps, smooth, color="C0", label="mean of 10")
        axis.set(title=_TITLES[name], xlabel="steps")
    figure.axes[0].legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
