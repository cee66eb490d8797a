r"""A table and a picture of trained humanoids, from the records that benchmarks/humanoid_tasks.py writes.

    python benchmarks/humanoid_report.py
    python benchmarks/humanoid_report.py --views "front and side, minimum" --labels "" long near-long \
        --picture docs/humanoid_tasks.png
    python benchmarks/humanoid_report.py --tasks arms-raised hands-on-hips splits --seeds 1 --labels "" near \
        --measures success_fraction vlm_return --picture docs/views_ablation.png

In the picture a task has a panel and each choice of views a line: the mean over its seeds, with their range.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from humanoid_tasks import RECORDS
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vlmrm_gym.tasks.humanoid_success import SUCCESS_CRITERIA

VIEWS = {
    ("paper", None): "front",
    ("side", None): "side",
    ("front-side", "min"): "front and side, minimum",
    ("front-side", "mean"): "front and side, mean",
}
"""Names of cameras and their combination."""
MEASURES = {"success_fraction": ("successful steps", 1), "vlm_return": ("VLM return", 100)}
"""Names of the measures, and their greatest values."""


@dataclass
class Args:
    tasks: tuple[str, ...] = tuple(SUCCESS_CRITERIA)
    """the humanoid tasks"""
    seeds: tuple[int, ...] | None = None
    """only these seeds; None: all that there are"""
    views: tuple[str, ...] = tuple(VIEWS.values())
    """only these views"""
    labels: tuple[str, ...] | None = None
    """only runs with these labels, "" for those without; None: all that there are"""
    records: Path = RECORDS
    """folder of the records"""
    picture: Path | None = None
    """file for the learning curves"""
    measures: tuple[Literal["success_fraction", "vlm_return"], ...] = ("success_fraction",)
    """what the picture shows"""


def views(record: dict[str, Any]) -> str:
    """Name of the views of a run."""
    return VIEWS[record["camera"], record["combine_views"]]


def setting(record: dict[str, Any]) -> tuple[int, int, str]:
    """What runs have in common that differ in the seed only: number of the task, number of the views, label."""
    return list(SUCCESS_CRITERIA).index(record["task"]), list(VIEWS.values()).index(views(record)), record["label"]


def describe(record: dict[str, Any]) -> str:
    """Name of the views of a run, with its other options."""
    return ", ".join(filter(None, (views(record), record["options"])))


def print_table(records: list[dict[str, Any]]) -> None:
    """Print a row for each run."""
    steps = records[0]["later_success"]
    print(f"| task | views | seed | success | {' | '.join(f'at step {int(step):,}' for step in steps)} | VLM return |")
    print("|---" * (5 + len(steps)) + "|")
    for record in records:
        later = " | ".join(f"{share:.0%}" for share in record["later_success"].values())
        print(
            f"| {record['task']} | {describe(record)} | {record['seed']} | {record['success']:.0%} | {later} "
            f"| {record['vlm_return']:.1f} |"
        )


def draw(records: list[dict[str, Any]], measures: Sequence[str], path: Path) -> None:
    """Plot measures of training episodes against the steps of training."""
    tasks = [(task, list(runs)) for task, runs in groupby(records, lambda record: record["task"])]
    columns = min(len(tasks), 4)
    rows = [(name, tasks[start : start + columns]) for start in range(0, len(tasks), columns) for name in measures]
    figure = Figure(figsize=(3.2 * columns, 2.6 * len(rows) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), columns, squeeze=False, sharex=True, sharey="row")
    for (measure, row), line in zip(rows, axes, strict=True):
        name, greatest = MEASURES[measure]
        line[0].set_ylabel(name)
        for axis, (task, runs) in zip(line, row, strict=False):
            for _, seeds in groupby(runs, setting):
                draw_line(axis, list(seeds), measure)
            axis.set_ylim(0, greatest)
            if measure == measures[0]:
                axis.set_title(title(task, runs), fontsize="medium")
        for axis in line[len(row) :]:
            axis.remove()
    for axis in axes[-1]:
        axis.set_xlabel("thousand steps")
    lines = {line.get_label(): line for axis in figure.axes for line in axis.get_lines()}
    names = [name for name in VIEWS.values() if name in lines]
    figure.legend([lines[name] for name in names], names, loc="outside lower center", ncols=len(names))
    figure.savefig(path, dpi=100)


def draw_line(axis: Axes, runs: list[dict[str, Any]], measure: str) -> None:
    """Plot the mean over seeds, and their range."""
    curves = [run["curve"] for run in runs]
    points = min(len(curve["step"]) for curve in curves)
    values = np.array([curve[measure][:points] for curve in curves])
    steps, name = np.array(curves[0]["step"][:points]) / 1_000, views(runs[0])
    color = f"C{list(VIEWS.values()).index(name)}"
    axis.fill_between(steps, values.min(0), values.max(0), alpha=0.2, color=color)
    axis.plot(steps, values.mean(0), color=color, label=name)


def title(task: str, runs: list[dict[str, Any]]) -> str:
    """The task, how many seeds it was trained with if more than one, and options that change what is learned."""
    seeds = len({run["seed"] for run in runs})
    options = {re.sub(r" ?--total-timesteps \d+", "", run["options"]) for run in runs}
    return "\n".join([task.replace("-", " ") + (f", {seeds} seeds" if seeds > 1 else ""), *sorted(options - {""})])


def main(args: Args) -> None:
    records = [json.loads(file.read_text()) for file in args.records.glob("*.json")]
    chosen = [
        record
        for record in sorted(records, key=lambda record: (setting(record), record["seed"]))
        if record["task"] in args.tasks
        and (args.seeds is None or record["seed"] in args.seeds)
        and (args.labels is None or record["label"] in args.labels)
        and views(record) in args.views
    ]
    if not chosen:
        raise SystemExit(f"{args.records} has no record of these runs. Run benchmarks/humanoid_tasks.py first.")
    print_table(chosen)
    if args.picture is not None:
        draw(chosen, args.measures, args.picture)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
