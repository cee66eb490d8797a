"""Learning curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

TITLES = {
    "vlm_return": "Scored return",
    "task_return": "Task return (not shown to the agent)",
    "success": "Success",
}


def plot_learning_curve(rows: Sequence[Mapping[str, float]], path: Path, *, title: str) -> None:
    """Draw a run's metrics.

    Args:
        rows: The lines of metrics.csv.
        path: The picture's.
        title: Is written above.

    Raises:
        OSError: The picture could not be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    steps = np.array([row["step"] for row in rows])
    for axis, (name, label) in zip(figure.subplots(1, len(TITLES)), TITLES.items(), strict=True):
        values = np.array([row[name] for row in rows])
        smooth = [np.mean(values[max(0, i - 9) : i + 1]) for i in range(len(values))]
        axis.plot(steps, values, alpha=0.3, linewidth=1)
        axis.plot(steps, smooth, color="C0", label="mean of 10")
        axis.set(title=label, xlabel="steps")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
