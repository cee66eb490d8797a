"""A report's numbers, settings and measures as text, and its summary in the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from vlmrm_gym.tools.check.measures import Interval
from vlmrm_gym.tools.check.results import Candidate, MeasuredCandidate, Measures, Report

MAX_ROWS = 12
"""How many combinations the terminal lists; the report has all."""
MINUS = "\N{MINUS SIGN}"
MISSING = "\N{EN DASH}"
"""What a table shows where nothing was measured."""
DOES_NOT_RANK = "does not rank"
"""What is said of an AUC whose interval is not above its controls and chance."""


class MeasureText(NamedTuple):
    """Name, heading and explanation of a measure."""

    name: str
    short: str
    reading: str


MEASURES = {
    "auc": MeasureText(
        "AUC", "AUC", "How often a success has a higher reward than a failure. 1 is perfect, 0.5 is chance."
    ),
    "epic": MeasureText("EPIC distance", "EPIC", "Distance to the labels. 0 is equivalent, 0.707 is uncorrelated."),
    "control_auc": MeasureText(
        "AUC of the best control",
        "Control",
        "The highest AUC of the controls, which should be at chance; 0.5 if chance explains it. A reward does not rank "
        "if the interval of its AUC is not above it.",
    ),
    "exploit_excess": MeasureText(
        "Exploit excess",
        "Exploit",
        "How far the best exploit is above the median success; 1 is the distance between the medians of successes and "
        "failures. Above 0, the best exploit gets more than the median success.",
    ),
    "threshold": MeasureText("Threshold", "Threshold", "The least reward that counts as success, for Success."),
    "false_positives": MeasureText(
        "False positives", "False", "Share of the failures whose reward is at least the threshold. 0 is best."
    ),
    "misses": MeasureText("Misses", "Missed", "Share of the successes whose reward is below the threshold. 0 is best."),
}
"""The fields of `Measures`."""
_ASKED_FOR = ("threshold", "false_positives", "misses")


def shown_measures(rows: Sequence[Measures]) -> dict[str, MeasureText]:
    """The measures to show: those of thresholds where they were asked for."""
    return {
        name: text
        for name, text in MEASURES.items()
        if name not in _ASKED_FOR or any(getattr(row, name) is not None for row in rows)
    }


def format_number(value: float | None) -> str:
    """Format a number with three decimals, or with two digits if it is very small or large; a dash for None."""
    if value is None:
        return MISSING
    size = abs(value)
    if size < 1e-9:
        return "0.000"
    return (f"{value:.3f}" if 0.0005 <= size < 10_000 else f"{value:.2g}").replace("-", MINUS)


def explain_missing_auc(report: Report) -> str:
    """Why there is no AUC."""
    problems = [own.problem for own in report.agreements.values() if own.problem]
    remedy = (
        'To say which states succeed, return info["success"] from the environment, pass --success for a MuJoCo '
        "environment, or label rollouts: vlmrm-gym dataset, then --rollouts and --labels."
    )
    return " ".join(["AUC was not measured: success is unknown, or the same for all states.", *problems, remedy])


def conclude(measures: Measures) -> str:
    """Say in a sentence what follows from the measures; no measure says that an agent will learn."""
    if measures.auc is None:
        return "look at the states with the highest rewards, in the report: agents will go there."
    pairs = f"it orders success above failure in {round(100 * measures.auc.value)} of 100 pairs"
    if measures.ranks is False:
        return f"{pairs}, which controls reach, too: reword the prompt, or take another view, model or reward."
    if measures.exploit_excess is None:
        return f"{pairs}."
    if measures.exploit_excess > 0:
        return f"{pairs}; the search found failing states that are paid more than success: look at them."
    return f"{pairs}; the search found no failing state that is paid more than the median success."


def describe_number(value: Interval | float | None) -> list[str]:
    """Describe a number, and below it its interval if it has one."""
    if not isinstance(value, Interval):
        return [format_number(value)]
    return [format_number(value.value), f"{format_number(value.low)} to {format_number(value.high)}"]


def describe_measure(measures: Measures, name: str) -> list[str]:
    """A measure in up to three lines: the number, its interval if it has one, and whether an AUC does not rank."""
    lines = describe_number(getattr(measures, name))
    return [*lines, DOES_NOT_RANK] if name == "auc" and measures.ranks is False else lines


def describe_setting(value: Any) -> str:
    """Describe the value of a setting as text; "none" for None."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, list | tuple):
        return "; ".join(map(describe_setting, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def label(name: str) -> str:
    """Write the label of a setting: its name in words."""
    return name.replace("_", " ").capitalize()


def known_settings(candidate: Candidate) -> dict[str, str]:
    """Collect the settings by their labels, without those that are left to the library."""
    hidden = (None, "auto")
    return {label(name): describe_setting(value) for name, value in candidate.settings.items() if value not in hidden}


def varying_settings(table: Sequence[MeasuredCandidate]) -> list[str]:
    """The settings in which rows differ, without the prompt; rewards of different kinds do not have the same ones."""
    rows = [row.candidate.settings for row in table]
    names = dict.fromkeys(name for row in rows for name in row if name != "prompt")
    return [name for name in names if any(row.get(name) != rows[0].get(name) for row in rows)]


def print_summary(report: Report, console: Console, path: Path | None) -> None:
    """Print the measures of all combinations, and the path of the report; None: it could not be written."""
    console.print(f'{report.subject}: "{report.candidate.title}"')
    if report.measures.auc is None:
        console.print(explain_missing_auc(report))
    else:
        console.print(f"AUC, EPIC distance and the control's AUC are of the {report.measures.states}.")
    names = varying_settings(report.table)
    rows = [(_describe_candidate(row.candidate, names), row.measures) for row in report.table[:MAX_ROWS]]
    if rows:
        shown = shown_measures([row.measures for row in report.table])
        table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
        table.add_column("Settings", min_width=12)
        for text in shown.values():
            table.add_column(text.short, justify="right", no_wrap=True)
        for title, measures in rows:
            table.add_row(title, *("\n".join(describe_measure(measures, name)) for name in shown))
        console.print(table)
    for title, measures in rows:
        console.print(f"{title}: {conclude(measures)}")
    if (left := len(report.table) - MAX_ROWS) > 0:
        console.print(f"{left} more combination{'s are' if left > 1 else ' is'} in the report.")
    if path is not None:
        console.print(f"Report: {path}", soft_wrap=True)


def _describe_candidate(candidate: Candidate, names: Sequence[str]) -> str:
    """Name a reward, and those of its settings that differ from those of others."""
    settings = candidate.settings
    known = [name for name in names if settings.get(name) is not None]
    return ", ".join(
        [candidate.title, *(f"{label(name).lower()} {describe_setting(settings[name])}" for name in known)]
    )
