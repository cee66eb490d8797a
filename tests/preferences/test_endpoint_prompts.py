"""Answers in words are read, and what says nothing is not taken for an answer."""

import math

import pytest

from vlmrm_gym.endpoint.messages import Token, expect, without_thinking
from vlmrm_gym.preferences.endpoint_prompts import parse_answer, read_bare, show_pair


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("1", 0),
        ("2", 1),
        ("0", 0.5),
        ("-1", 0.5),
        (" 2.\n", 1),
        ("**1**", 0),
        ("B", 1),
        ("(A)", 0),
        ("Image 2", 1),
        ("Image 1.", 0),
        ("image two is the better one", 1),
        ("Second.", 1),
        ("The second one.", 1),
        ("The first image is closer to the goal.", 0),
        ("Answer: 2", 1),
        ("Final answer: Image 1", 0),
        ("My answer is 0, as they look the same.", 0.5),
        ('{"answer": 2}', 1),
        ('```json\n{"choice": "first"}\n```', 0),
        ("Image 2 is closer than image 1.", 1),
        ("The pole of Image 1 leans less compared to that of Image 2.", 0),
        ("Neither.", 0.5),
        ("Image 1 and Image 2 are equally close.", 0.5),
        ("Both images look the same.", 0.5),
        ("Image 1 leans by 30 degrees.\nImage 2 leans by 2 degrees.\n\nAnswer: 2", 1),
        ("Image 1 leans by 30 degrees and image 2 by 2. So the second image is closer.", 1),
        ("Let me see. Image 1 leans. Image 2 stands.\n2", 1),
        ("<think>1 or 2? The answer: 1. No.</think>2", 1),
        ("Hm, image 1.</think>\n\nImage 2", 1),
        ("2. In Image 1 the pole has fallen.", 1),
        ("2, because the pole in image 1 has fallen", 1),
        ("2\n\nIn image 1 the pole has fallen.", 1),
        ("1 (Image 2 leans.)", 0),
        ("Image 1 stands. Answer: 1. The pole of image 2 leans.", 0),
        ("1, 2", None),
        ("Image 1 is farther from the goal than image 2.", None),
        ("Image 2 is not closer.", None),
        ("Image 1 isn't any closer to the goal.", None),
        ("Image 1 is worse.", None),
        ("2.5 degrees is how far the pole of image 1 leans.", 0),
        ("", None),
        (None, None),
        ("I'm sorry, but I can't help with that.", None),
        ("Image 1 shows a pole, and image 2 shows a pole.", None),
        ("The pole leans by 2 degrees.", None),
        ("<think>It is image 1, as", None),
        ("3", None),
        ("12", None),
    ],
)
def test_answers_are_read(text, answer):
    assert parse_answer(text) == answer


def test_a_truncated_text_is_an_answer_only_if_it_is_bare():
    assert parse_answer("2", truncated=True) == 1
    assert parse_answer("Image 1 shows a", truncated=True) is None


def test_thinking_is_left_out():
    assert without_thinking("<think>a</think>b<thinking>c</thinking> d") == "b d"


def test_the_expectation_is_over_the_tokens_of_the_answer():
    """Spaces before letters do not matter, nor do tokens that are no answers; the last answer counts."""
    tops = [(" 2", math.log(0.5)), ("2", math.log(0.1)), ("1", math.log(0.15)), ("0", math.log(0.05)), ("x", -0.1)]
    tokens = [Token("1", [("1", 0.0)]), Token(" Image", []), Token(" 2", tops), Token(".", [])]
    assert expect(1.0, tokens, read_bare) == pytest.approx((0.6 + 0.05 / 2) / 0.8)
    assert expect(0.5, tokens, read_bare) == 0.5  # no token says this


def test_the_question_comes_last_and_what_is_shared_first():
    (message,) = show_pair("a goal", [b"first", b"second"], "Which?", trajectory=False)
    kinds = [part["type"] for part in message["content"]]
    assert kinds == ["text", "text", "image_url", "text", "image_url", "text"]
    assert "a goal" in message["content"][0]["text"]
    assert message["content"][-1]["text"] == "Which?"
