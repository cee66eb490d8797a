"""Draws a run's learning curve, and writes TensorBoard events, also when it is resumed."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from stable_baselines3.common.logger import TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter

_TITLES = {
    "vlm_return": "VLM return",
    "task_return": "Task return (not shown to the agent)",
    "success": "Success (fraction of episodes)",
    "success_fraction": "Success (fraction of steps)",
}


class TensorBoardWriter(TensorBoardOutputFormat):
    """A TensorBoard writer that can purge events from a step on."""

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        # TensorBoard reads files in the order of their names, which begin with the second and end with a counter:
        # within a second, file 10 would be read before file 9. So two files never begin in the same second.
        parts = (path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*.*"))
        newest = max((int(part) for part in parts if part.isdecimal()), default=0)
        time.sleep(min(max(newest + 1 - time.time(), 0), 1))
        self._is_closed = False
        self.writer = SummaryWriter(str(folder), purge_step=purge_step)


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
