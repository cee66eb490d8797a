"""Learning curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

TITLES = {
    "vlm_return": "VLM return",
    "task_return": "Task return (not shown to the agent)",
    "success": "Success (fraction of episodes)",
    "success_fraction": "Success (fraction of steps)",
}


def plot_learning_curve(rows: Sequence[Mapping[str, float]], path: Path, *, title: str) -> None:
    """Draw returns and success against steps.

    Args:
        rows: Each has `step` and some of the keys of `TITLES`; of the two kinds of success, the first is drawn.
        path: File of the plot.
        title: Title of the plot.

    Raises:
        OSError: The file could not be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [name for name in TITLES if not rows or any(name in row for row in rows)][:3]
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, name in zip(figure.subplots(1, len(names)), names, strict=True):
        steps, values = np.reshape([(row["step"], row[name]) for row in rows if name in row], (-1, 2)).T
        smooth = [np.mean(values[max(0, i - 9) : i + 1]) for i in range(len(values))]
        axis.plot(steps, values, ".-", alpha=0.3, linewidth=1)
        axis.plot(steps, smooth, color="C0", label="mean of 10")
        axis.set(title=TITLES[name], xlabel="steps")
    figure.axes[0].legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
