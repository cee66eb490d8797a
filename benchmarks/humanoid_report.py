r"""A table and a picture of trained humanoids, from the records that benchmarks/humanoid_tasks.py writes.

    python benchmarks/humanoid_report.py
    python benchmarks/humanoid_report.py --tasks arms-raised hands-on-hips splits --seeds 1 \
        --picture docs/views_ablation.png

In the picture a task has a panel and each choice of views a line: the mean over its seeds, whose number is
in brackets, with their range.
"""

import json
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from humanoid_tasks import RECORDS
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vlmrm_gym.envs.humanoid_success import SUCCESS_CRITERIA

VIEWS = {
    ("paper", None): "front",
    ("side", None): "side",
    ("front-side", "min"): "front and side, minimum",
    ("front-side", "mean"): "front and side, mean",
}
"""How cameras and their combination are called."""


@dataclass
class Args:
    tasks: tuple[str, ...] = tuple(SUCCESS_CRITERIA)
    """the humanoid tasks"""
    seeds: tuple[int, ...] | None = None
    """only these seeds; None: all that there are"""
    picture: Path | None = None
    """file for the learning curves"""


def setting(record: dict[str, Any]) -> tuple[int, int, str]:
    """What runs have in common that differ in the seed only: number of the task, number of the views, label."""
    views = (record["camera"], record["combine_views"])
    return list(SUCCESS_CRITERIA).index(record["task"]), list(VIEWS).index(views), record["label"]


def views(record: dict[str, Any]) -> str:
    """How the views of a run are called, with its other options."""
    return ", ".join(filter(None, (VIEWS[record["camera"], record["combine_views"]], record["options"])))


def print_table(records: list[dict[str, Any]]) -> None:
    """Print a row for each run."""
    steps = records[0]["later_success"]
    print(f"| task | views | seed | success | {' | '.join(f'at step {int(step):,}' for step in steps)} | VLM return |")
    print("|---" * (5 + len(steps)) + "|")
    for record in records:
        later = " | ".join(f"{share:.0%}" for share in record["later_success"].values())
        print(
            f"| {record['task']} | {views(record)} | {record['seed']} | {record['success']:.0%} | {later} "
            f"| {record['vlm_return']:.1f} |"
        )


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Plot the fraction of successful steps against the steps of training."""
    tasks = [(task, list(runs)) for task, runs in groupby(records, lambda record: record["task"])]
    columns = min(len(tasks), 4)
    rows = -(-len(tasks) // columns)
    figure = Figure(figsize=(3.4 * columns, 3 * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    labels = list(dict.fromkeys(views(record) for record in records))
    for axis, (task, runs) in zip(axes, tasks, strict=False):
        for label, seeds in groupby(runs, views):
            curves = [run["curve"] for run in seeds]
            points = min(len(curve["step"]) for curve in curves)
            values = np.array([curve["success_fraction"][:points] for curve in curves])
            steps, color = np.array(curves[0]["step"][:points]) / 1_000, f"C{labels.index(label)}"
            axis.fill_between(steps, values.min(0), values.max(0), alpha=0.2, color=color)
            axis.plot(steps, values.mean(0), color=color, label=f"{label} ({len(curves)})")
        axis.set(title=task.replace("-", " "), xlabel="thousand steps", ylim=(-0.02, 1.02))
        axis.legend(fontsize="x-small")
    for axis in axes[len(tasks) :]:
        axis.remove()
    figure.supylabel("successful steps, judged by state")
    figure.savefig(path, dpi=100)


def main(args: Args) -> None:
    records = [json.loads(file.read_text()) for file in RECORDS.glob("*.json")]
    chosen = [
        record
        for record in sorted(records, key=lambda record: (setting(record), record["seed"]))
        if record["task"] in args.tasks and (args.seeds is None or record["seed"] in args.seeds)
    ]
    if not chosen:
        raise SystemExit(f"{RECORDS} has no record of these tasks and seeds. Run benchmarks/humanoid_tasks.py first.")
    print_table(chosen)
    if args.picture is not None:
        draw(chosen, args.picture)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
