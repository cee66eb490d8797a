"""Answers of yes or no, and of a digit, are read; what says neither is not taken for one."""

import pytest

from vlmrm_gym.rewards.endpoint_questions import make_options, make_question, parse

READ = {
    "Yes": 1,
    " yes.\n": 1,
    "**No**": 0,
    "NO!": 0,
    "No, the pole leans.": 0,
    "Yes, there is no tilt.": 1,
    "Answer: yes": 1,
    "The answer is no.": 0,
    "The pole is vertical.\nYes.": 1,
    "<think>Is it? No. Yes?</think>No": 0,
    "It stands upright. Yes.": 1,
    "I cannot say yes.": None,
    "": None,
    None: None,
    "I have no idea.": None,
    "There is no pole in the image.": None,
    "Yes or no? It cannot be told.": None,
    "Maybe": None,
    "No doubt about it. Yes.": 1,
    "No question, it stands upright.": None,
    "<think>It is, yes": None,
    "I'm sorry, but I can't help with that.": None,
    "3": None,
}
RATED = {
    "3": 0.75,
    "**4**": 1,
    "0.": 0,
    "Rating: 2": 0.5,
    "I would give a rating of 1.": 0.25,
    "3/4": 0.75,
    "2 out of 4": 0.5,
    "2 - it leans": 0.5,
    "The pole leans a bit, so I rate this 3.": 0.75,
    "<think>4 or 3?</think>3": 0.75,
    "5": None,
    "12": None,
    "2.5": None,
    "-": None,
    "It leans by 10 degrees.": None,
    "Somewhere between 2 and 3": None,
    "yes": None,
}


@pytest.mark.parametrize(("text", "answer"), READ.items())
def test_yes_and_no_are_read(text, answer):
    assert parse(text, make_options(None)) == answer


@pytest.mark.parametrize(("text", "answer"), RATED.items())
def test_digits_are_read(text, answer):
    assert parse(text, make_options(5)) == answer


def test_what_was_cut_off_is_an_answer_only_if_it_is_bare():
    assert parse("yes", make_options(None), truncated=True) == 1
    assert parse("Yes, but", make_options(None), truncated=True) is None


def test_all_views_are_in_one_question():
    (message,) = make_question("a goal", [b"left", b"right"], 5)
    parts = [part.get("text", "image") for part in message["content"]]
    assert "a goal" in parts[0]
    assert "same moment" in parts[0]
    assert parts.count("image") == 2
    assert "to 4" in parts[-1]
