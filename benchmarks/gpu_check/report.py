"""Rows, checks and the Markdown made of them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["", "ok", "FAIL", "below target", "skipped"]


class Skipped(Exception):
    """A check that cannot run on this machine; the message is the reason."""


@dataclass(frozen=True)
class Row:
    """One line of a check's table."""

    what: str
    value: str
    verdict: Verdict = ""
    """Empty where the row is information only."""

    @classmethod
    def at_most(cls, what: str, value: float, limit: float) -> "Row":
        """A number with an upper limit; NaN fails."""
        return cls(what, f"{value:.2g} (limit {limit:g})", "ok" if value <= limit else "FAIL")

    @classmethod
    def holds(cls, what: str, value: object, condition: bool) -> "Row":
        """A value with a condition."""
        return cls(what, str(value), "ok" if condition else "FAIL")


@dataclass
class Outcome:
    """What one check gave."""

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""
    """Why it did not finish; empty if it did."""
    log_tail: str = ""
    """The end of what a check that did not finish printed."""

    @property
    def verdict(self) -> str:
        """The worst of its rows, or "FAIL" where it did not finish."""
        verdicts = {row.verdict for row in self.rows}
        if self.error or "FAIL" in verdicts:
            return "FAIL"
        return next((one for one in ("below target", "skipped") if one in verdicts), "ok")


def render(outcomes: Iterable[Outcome], heading: str) -> str:
    """The report: a summary, then a table for each check."""
    outcomes = list(outcomes)
    parts = [f"# {heading}", table(("check", "verdict", "seconds"), [summary(one) for one in outcomes])]
    for one in outcomes:
        parts.append(f"## {one.title}")
        if one.error:
            parts.append(f"**{one.error}**")
        if one.rows:
            parts.append(table(("what", "value", "verdict"), [(row.what, row.value, row.verdict) for row in one.rows]))
        if one.log_tail:
            parts.append(f"```text\n{one.log_tail}\n```")
    return "\n\n".join(parts) + "\n"


def summary(outcome: Outcome) -> tuple[str, str, str]:
    """The line of a check in the summary."""
    reason = outcome.error or next((row.value for row in outcome.rows if row.verdict == "skipped"), "")
    return outcome.title, f"{outcome.verdict}{': ' if reason else ''}{reason}", f"{outcome.seconds:.0f}"


def table(head: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    """A Markdown table; line breaks and bars in cells are escaped."""
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines]
    rule = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(line)} |" for line in [list(head), rule, *cells])
