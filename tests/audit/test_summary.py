"""The summary of a check in a terminal, and the words that it shares with the report."""

import dataclasses
from io import StringIO

import pytest
from reports import full_report, make_candidate, minimal_report

from vlmrm_gym.audit.formatting import MINUS, MISSING, format_number
from vlmrm_gym.audit.results import Row
from vlmrm_gym.audit.summary import print_summary
from vlmrm_gym.cli.console import PlainConsole


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, MISSING),
        (0.0, "0.000"),
        (-5.6e-17, "0.000"),
        (0.12345, "0.123"),
        (-0.5, f"{MINUS}0.500"),
        (0.000123, "0.00012"),
        (123456.0, "1.2e+05"),
    ],
)
def test_numbers_are_short(value, text):
    assert format_number(value) == text


def summary(report, path, width=80) -> str:
    console = PlainConsole()
    console.width, console.file = width, StringIO()
    print_summary(report, console, path)
    return console.file.getvalue()


def test_the_summary_has_the_measures_with_intervals_and_the_path(tmp_path):
    path = tmp_path / ("long" * 40) / "report.html"
    text = summary(full_report(), path)
    assert "0.950" in text
    assert "0.930 to 0.970" in text
    assert summary(full_report(), path, width=120).count("a humanoid robot kneeling,") == 6
    assert f"Report: {path}\n" in text
    lines = text.splitlines()
    assert max(len(line) for line in lines[:-1]) <= 80


def test_the_summary_names_the_combinations_that_do_not_rank(tmp_path):
    """The best control has an AUC of 0.61: the intervals of two of the twelve rewards are not above it."""
    report = full_report()
    assert summary(report, tmp_path).count("does not rank") == 2
    assert "does not rank" not in summary(dataclasses.replace(report, table=report.table[:10]), tmp_path)


def test_the_summary_writes_control_characters_out(tmp_path):
    text = summary(full_report("a \x1b[31mpole"), tmp_path / "\x1b[2J")
    assert "a \\x1b[31mpole" in text
    assert "\\x1b[2J" in text
    assert "\x1b" not in text


def test_the_summary_lists_the_best_combinations_only(tmp_path):
    report = full_report()
    row = report.table[0]
    table = [Row(candidate=make_candidate(alpha=n / 20), measures=row.measures) for n in range(14)]
    text = summary(dataclasses.replace(report, table=table), tmp_path, width=120)
    assert "alpha 0.55" in text
    assert "alpha 0.6" not in text
    assert "2 more combinations are in the report." in text


def test_the_summary_of_nothing(tmp_path):
    why = "AUC was not measured: success is unknown, or the same for all states."
    assert summary(minimal_report(), "x.html") == f'Mine-v0: "x"\n{why}\nReport: x.html\n'
