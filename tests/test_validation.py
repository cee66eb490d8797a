"""Texts of messages."""

import pytest

from vlmrm_gym.rewards.sources import ModelSource, cannot_download
from vlmrm_gym.terminal import printable, say
from vlmrm_gym.validation import truncate


@pytest.mark.parametrize(
    ("text", "length", "expected"),
    [
        ("an upright pole", 15, "an upright pole"),
        ("an upright pole", 14, "an upright..."),
        ("an upright pole", 13, "an upright..."),
        ("an upright pole", 12, "an uprigh..."),  # "an..." would say too little
        ("a" * 300, 200, "a" * 197 + "..."),
    ],
)
def test_long_texts_end_with_a_whole_word_where_that_leaves_half_of_them(text, length, expected):
    assert truncate(text, length) == expected


def test_the_reason_why_weights_cannot_be_downloaded_ends_with_a_whole_word():
    reason = "The Hub cannot be reached. " * 20
    source = ModelSource("ViT-B-32/laion2b_s34b_b79k", "ViT-B-32", "laion2b_s34b_b79k")
    message = str(cannot_download(source, "weights", RuntimeError(reason)))
    quoted = message.partition("could not be downloaded (")[2].partition("...)")[0]
    assert 150 < len(quoted) < 200
    assert reason.startswith(f"{quoted} ")


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\rb\x00c\x7fd\x9be", "a\\rb\\x00c\\x7fd\\x9be"),
        ("\udcff.png", "\\udcff.png"),  # a file name that is not text
        ("two\nlines\tand 木, é, 👩\u200d🔬", "two\nlines\tand 木, é, 👩\u200d🔬"),
    ],
)
def test_control_characters_are_written_out(text, printed, capsys):
    assert printable(text) == printed
    say(text)
    say(text, error=True)
    assert capsys.readouterr() == (f"{printed}\n", f"{printed}\n")
