"""Texts of messages."""

import io
import sys

import pytest
from rich.table import Table

from vlmrm_gym._util.errors import printable, quote, say
from vlmrm_gym._util.validation import truncate
from vlmrm_gym.tools.cli.settings import PlainConsole


def test_long_texts_end_with_a_whole_word_where_that_leaves_half_of_them():
    for length, expected in {15: "an upright pole", 14: "an upright...", 13: "an upright..."}.items():
        assert truncate("an upright pole", length) == expected
    assert truncate("an upright pole", 12) == "an uprigh..."  # "an..." would say too little


def test_control_characters_are_written_out(capsys):
    for text, printed in {
        "\x1b[31mred": "\\x1b[31mred",
        "a\rb\x00c\x7fd\x9be": "a\\rb\\x00c\\x7fd\\x9be",
        "\udcff.png": "\\udcff.png",  # a file name that is not text
        "two\nlines\tand 木, é, 👩\u200d🔬": "two\nlines\tand 木, é, 👩\u200d🔬",
    }.items():
        assert printable(text) == printed
        say(text)
        say(text, error=True)
        assert capsys.readouterr() == (f"{printed}\n", f"{printed}\n")


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8"])
def test_what_the_terminal_cannot_show_is_written_out(encoding, monkeypatch):
    """In lines and in tables, whose texts are no markup, and steer nothing."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    monkeypatch.setattr(sys, "stdout", stream)
    texts = ["[/bad] [red]", ":smile: \x1b[31m", "中 5 ± \udc9b", "2026-11-25\x9b31m"]
    for text in texts:
        say(text)
    table = Table(title=texts[0])
    table.add_column(texts[1])
    table.add_row(texts[2])
    table.add_row(texts[3])
    PlainConsole().print(table)
    stream.flush()
    shown = stream.buffer.getvalue().decode(encoding)
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    middle = {"cp1252": "\\u4e2d 5 ±", "utf-8": "中 5 ±"}[encoding]
    for text in ("[/bad] [red]", ":smile: \\x1b[31m", f"{middle} \\udc9b", "2026-11-25\\x9b31m"):
        assert shown.count(text) == 2


def test_a_quotation_is_one_line_and_short():
    assert quote('Pass "isolate=False"\n\x1b[31m') == "\"Pass 'isolate=False' \\x1b[31m\""
    assert quote("x" * 1_000) == f'"{"x" * 500}..."'
