"""A report's summary in the terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from vlmrm_gym.audit.formatting import (
    MEASURES,
    describe_measure,
    describe_setting,
    explain_missing_auc,
    label,
    varying_settings,
)
from vlmrm_gym.audit.results import Candidate, Report

MAX_ROWS = 12
"""How many combinations are listed; the report has all."""


def print_summary(report: Report, console: Console, path: Path | None) -> None:
    """Print the measures of all combinations, and where the report is.

    Args:
        report: What was found.
        console: Where to print.
        path: The report's file; None if it could not be written.
    """
    console.print(f'{report.subject}: "{report.candidate.title}"')
    if report.measures.auc is None:
        console.print(explain_missing_auc(report))
    else:
        console.print(f"AUC, EPIC distance and the control's AUC are of the {report.measures.states}.")
    if report.table:
        console.print(_combinations(report))
    left = len(report.table) - MAX_ROWS
    if left > 0:
        console.print(f"{left} more combination{'s are' if left > 1 else ' is'} in the report.")
    if path is not None:
        console.print(f"Report: {path}", soft_wrap=True)


def _combinations(report: Report) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("Settings", min_width=12)
    for measure in MEASURES.values():
        table.add_column(measure.short, justify="right", no_wrap=True)
    names = varying_settings(report.table)
    for row in report.table[:MAX_ROWS]:
        table.add_row(
            _describe(row.candidate, names),
            *("\n".join(describe_measure(row.measures, name)) for name in MEASURES),
        )
    return table


def _describe(candidate: Candidate, names: Sequence[str]) -> str:
    """The reward, and other settings that are not None with their labels."""
    known = [name for name in names if candidate.settings.get(name) is not None]
    others = [f"{label(name).lower()} {describe_setting(candidate.settings[name])}" for name in known]
    return ", ".join([candidate.title, *others])
