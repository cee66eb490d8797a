"""A report's summary in the terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vlmrm_gym.check.results import Choice, Report, VerdictName
from vlmrm_gym.check.words import MEASURES, SETTINGS, format_number, setting, varying_settings
from vlmrm_gym.terminal import printable

STYLES: dict[VerdictName, str] = {
    "usable": "bold green",
    "exploitable": "bold red",
    "weak": "bold yellow",
    "flat": "bold yellow",
    "hopeless": "bold red",
    "unknown": "bold",
}
"""Colours of the verdicts, as in the report."""
MAX_ROWS = 12
"""How many combinations are listed; the report has all."""


def print_summary(report: Report, console: Console, path: Path | None) -> None:
    """Print the verdict with its reasons and next steps, the combinations and where the report is.

    Args:
        report: What was found.
        console: Where to print.
        path: The report's file; None if it could not be written.
    """
    verdict = report.verdict
    console.print(_text(f'{report.subject}: "{report.choice.prompt}"'))
    console.print(Text.assemble("Verdict: ", (verdict.name, STYLES[verdict.name])))
    for reason in verdict.reasons:
        console.print(_text(f"- {reason}"))
    if verdict.next_steps:
        console.print(Text("What to try next:"))
        for step in verdict.next_steps:
            console.print(_text(f"- {step}"))
    if report.table:
        console.print(_combinations(report))
    left = len(report.table) - MAX_ROWS
    if left > 0:
        console.print(_text(f"{left} more combination{'s are' if left > 1 else ' is'} in the report."))
    if path is not None:
        console.print(_text(f"Report: {path}"), soft_wrap=True)


def _text(text: str) -> Text:
    return Text(printable(text))


def _combinations(report: Report) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("Settings", min_width=12)
    table.add_column("Verdict", no_wrap=True)
    for measure in MEASURES.values():
        table.add_column(measure.short, justify="right", no_wrap=True)
    names = varying_settings(report.table)
    for row in report.table[:MAX_ROWS]:
        table.add_row(
            _text(_describe(row.choice, names)),
            Text(row.verdict.name, STYLES[row.verdict.name]),
            *(format_number(getattr(row.measures, name)) for name in MEASURES),
        )
    return table


def _describe(choice: Choice, names: Sequence[str]) -> str:
    """The prompt, and other settings that are not None with their labels."""
    others = [name for name in names if name != "prompt" and getattr(choice, name) is not None]
    return ", ".join([choice.prompt, *(f"{SETTINGS[name].lower()} {setting(choice, name)}" for name in others)])
