"""Answers are read in texts, and what is none is not taken for one; expectations are those of the answer's place."""

import math

import pytest

from vlmrm_gym.endpoint.messages import without_thinking
from vlmrm_gym.endpoint.options import Options
from vlmrm_gym.endpoint.reply import Reply, Token, spell
from vlmrm_gym.preferences.endpoint_prompts import OPTIONS as PREFERENCES
from vlmrm_gym.rewards.endpoint_questions import make_options

YES_NO, RATINGS = make_options(None), make_options(5)


def reply(text, tokens=None, truncated=False):
    return Reply(text=text, tokens=tokens, truncated=truncated, model="m", input_tokens=1, output_tokens=1)


def parse(options, text, **more):
    found = options.parse(reply(text, **more))
    return None if found is None else found.value


READ = {
    "Yes": 1,
    " yes.\n": 1,
    "**No**": 0,
    "NO!": 0,
    "(Yes)": 1,
    "No, the pole leans.": 0,
    "Yes, there is no tilt.": 1,
    "Yes. The pole stands.": 1,
    "No because it leans": 0,
    "Yes - it stands": 1,
    "Answer: yes": 1,
    '{"answer": "no"}': 0,
    "The answer is no.": 0,
    "The pole is vertical.\nYes.": 1,
    "Yes, it stands.\n\nThe pole is vertical.": 1,
    "<think>Is it? No. Yes?</think>No": 0,
    "It stands upright. Yes.": 1,
    "No doubt about it. Yes.": 1,
    "I cannot say yes.": None,
    "": None,
    None: None,
    "I have no idea.": None,
    "There is no pole in the image.": None,
    "Yes or no? It cannot be told.": None,
    "Yes, no, perhaps": None,
    "No, no.": None,
    "Yes.\nNo.": None,
    "Yes, at first. No.": None,
    "Answer: yes or no?": None,
    "Maybe": None,
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
    "Rating: 4 / 4": 1,
    "2 out of 4": 0.5,
    "2 - it leans": 0.5,
    "It leans.\n3": 0.75,
    "<think>4 or 3?</think>3": 0.75,
    "4/10": None,
    "3/5": None,
    "2-3": None,
    "2, 3": None,
    "5": None,
    "12": None,
    "-1": None,
    "2.5": None,
    "-": None,
    "It leans by 10 degrees.": None,
    "Somewhere between 2 and 3": None,
    "1. The pole leans.\n2. The cart stands.": None,
    "yes": None,
}
PREFERRED = {
    "1": 0,
    "2": 1,
    "0": 0.5,
    "-1": 0.5,
    " 2.\n": 1,
    "**1**": 0,
    "B": 1,
    "(A)": 0,
    "Image 2": 1,
    "Image 1.": 0,
    "image two": 1,
    "Second.": 1,
    "The second one.": 1,
    "The first image is closer to the goal.": 0,
    "Image 2 is closer than image 1.": 1,
    "Answer: 2": 1,
    "Final answer: Image 1": 0,
    "My answer is 0, as they look the same.": 0.5,
    '```json\n{"choice": "first"}\n```': 0,
    "Neither.": 0.5,
    "Image 1 leans by 30 degrees.\nImage 2 leans by 2 degrees.\n\nAnswer: 2": 1,
    "Let me see. Image 1 leans. Image 2 stands.\n2": 1,
    "<think>1 or 2? The answer: 1. No.</think>2": 1,
    "Hm, image 1.</think>\n\nImage 2": 1,
    "2. In Image 1 the pole has fallen.": 1,
    "2, because the pole in image 1 has fallen": 1,
    "2\n\nIn image 1 the pole has fallen.": 1,
    "1 (Image 2 leans.)": 0,
    "Image 1 stands. Answer: 1. The pole of image 2 leans.": 0,
    "1, 2": None,
    "1 and 2": None,
    "Image 1 and Image 2 are equally close.": None,
    "Image 1 is farther from the goal than image 2.": None,
    "Image 2 is not closer.": None,
    "Image 1 isn't any closer to the goal.": None,
    "Image 1 is worse.": None,
    "Image 1: the pole leans.\nImage 2: it stands.": None,
    "1. Image 1 leans.\n2. Image 2 stands.": None,
    "2.5 degrees is how far the pole of image 1 leans.": None,
    "": None,
    None: None,
    "I'm sorry, but I can't help with that.": None,
    "Image 1 shows a pole, and image 2 shows a pole.": None,
    "A pole leans.": None,
    "The pole leans by 2 degrees.": None,
    "<think>It is image 1, as": None,
    "3": None,
    "12": None,
}


@pytest.mark.parametrize(
    ("options", "text", "answer"),
    [
        *((YES_NO, *case) for case in READ.items()),
        *((RATINGS, *case) for case in RATED.items()),
        *((PREFERENCES, *case) for case in PREFERRED.items()),
    ],
)
def test_answers_are_read_and_prose_is_not_guessed_at(options, text, answer):
    assert parse(options, text) == answer


@pytest.mark.parametrize(
    ("options", "text", "answer"), [(YES_NO, "yes", 1), (YES_NO, "Yes, but", None), (PREFERENCES, "Image 1 is", None)]
)
def test_what_was_cut_off_is_an_answer_only_if_it_is_bare(options, text, answer):
    assert parse(options, text, truncated=True) == answer


def test_thinking_is_left_out():
    assert without_thinking("<think>a</think>b<thinking>c</thinking> d") == "b d"


def place(token, share, **others):
    """A token, and others in its place, by their probabilities; underscores are spaces."""
    listed = [(name.replace("_", " "), weight) for name, weight in others.items()]
    return Token(token, share, [*listed, (token, share)])


EOS = Token("<|im_end|>", 1.0, [("<|im_end|>", 1.0)])
EXPECTED = {
    "spellings add up": (YES_NO, "Yes", [place("Yes", 0.4, _Yes=0.2, No=0.1, _No=0.3)], 0.6),
    "over the answers alone": (YES_NO, "Yes", [place("Yes", 0.3, No=0.2, The=0.4, Maybe=0.1)], 0.6),
    "the token itself": (YES_NO, "Yes", [Token("Yes", 0.7, [("No", 0.3)])], 0.7),
    "the token itself, and its other spelling": (YES_NO, "Yes", [Token("Yes", 0.5, [(" Yes", 0.2), ("No", 0.3)])], 0.7),
    "in parts": (YES_NO, "Yes", [place("Y", 0.7, N=0.3), place("es", 1.0)], 0.7),
    "in three parts": (YES_NO, "yes", [place("y", 0.6, n=0.2, No=0.2), place("e", 1.0), place("s", 1.0)], 0.6),
    "a part against a word": (YES_NO, "No", [place("No", 0.3, Y=0.7)], 0.7),
    "with a mark": (YES_NO, "Yes.", [place("Yes.", 0.7, No=0.2, **{"No.": 0.1})], 0.7),
    "after marks": (YES_NO, "**Yes**", [place("**", 0.9, Yes=0.1), place("Yes", 0.7, No=0.3), place("**", 1.0)], 0.7),
    "after thoughts": (
        YES_NO,
        "Yes",
        [place("No", 0.9, Yes=0.1), place("</think>", 1.0), place("Yes", 0.7, No=0.3), EOS],
        0.7,
    ),
    "before an explanation": (
        YES_NO,
        "No, it leans: no.",
        [place("No", 0.3, Yes=0.7), place(",", 1.0), place(" it leans: ", 1.0), place("no", 0.9, yes=0.1)],
        0.7,
    ),
    "of a fraction": (RATINGS, "4/4", [place("4", 0.5, **{"2": 0.5}), place("/", 1.0), place("4", 1.0)], 0.75),
    "of a fraction in one token": (RATINGS, "4/4", [place("4/4", 0.5, **{"2/4": 0.5})], 0.75),
    "of a rating": (RATINGS, "Rating: 3", [place("Rating", 1.0), place(":", 1.0), place(" 3", 0.5, _1=0.5)], 0.5),
    "nearly all of it": (YES_NO, "Yes", [place("Yes", 0.98)], 1.0),
    "impossible ones": (YES_NO, "Yes", [place("Yes", 0.7, No=0.3, NO=0.0)], 0.7),
    "of a pair": (PREFERENCES, "Image 2", [place("Image", 1.0), place(" 2", 0.5, _1=0.3, _0=0.2)], 0.6),
    "in a word": (PREFERENCES, "The second image is closer.", [
        place("The", 1.0), place(" second", 0.8, _first=0.2), place(" image", 1.0), place(" is", 1.0),
        place(" closer", 1.0), place(".", 1.0)], 0.8),
    "of minus one": (PREFERENCES, "-1", [place("-", 0.5, **{"1": 0.25, "2": 0.25}), place("1", 1.0)], 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_the_expectation_is_over_the_tokens_that_begin_the_answer(name):
    options, text, tokens, expected = EXPECTED[name]
    assert options.expect(options.parse(reply(text)), tokens) == pytest.approx(expected, rel=1e-6)


UNTOLD = {
    "no tokens": ("Yes", []),
    "no alternatives": ("Yes", [Token("Yes", 0.7, [])]),
    "of another place": ("Yes", [Token("Yes", 0.7, [(".", 0.9), ("!", 0.1)])]),
    "more than all": ("Yes", [place("Yes", 1.0, No=1.0)]),
    "one answer alone, and not nearly all": ("Yes", [place("Yes", 0.7)]),
    "of another text": ("Yes", [place("No", 0.7, Yes=0.3)]),
    "without an end": ("Yes", [place("Yes", 0.7, No=0.3), place(" or", 0.9)]),
    "within a token": ("Answer: Yes", [place("Answer:Yes", 0.7, No=0.3)]),
    "by number": ("Yes", [place("token_id:9642", 0.7, **{"token_id:2822": 0.3})]),
    "impossible": ("Yes", [place("Yes", 0.0, No=0.5)]),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_tokens_that_do_not_tell_give_no_number(name):
    text, tokens = UNTOLD[name]
    assert YES_NO.expect(YES_NO.parse(reply(text)), tokens) is None


@pytest.mark.parametrize(
    ("token", "encoded", "text"),
    [
        ("Yes", None, "Yes"),
        ("ĠYes", None, " Yes"),
        ("ĊYes", None, "\nYes"),
        ("▁Yes", None, " Yes"),
        ("<0x0A>", None, "\n"),
        ("<0xE2>", None, "\ufffd"),
        ("âĢĻ", None, "\u2019"),
        ("ĠÃ©", None, " é"),
        ("token_id:9642", list(b"Yes"), "Yes"),
        ("token_id:9642", list("ĠYes".encode()), " Yes"),
        ("token_id:9642", None, "token_id:9642"),
        ("Yes", [], "Yes"),
        ("Yes", [300], "Yes"),
        ("Yes", [True], "Yes"),
        ("Yes", "No", "Yes"),
    ],
)
def test_tokens_are_spelled_in_plain_text(token, encoded, text):
    assert spell(token, encoded) == text


def test_every_character_of_a_byte_level_vocabulary_is_known():
    """What GPT-2's own table says of some: the space is Ġ, the line feed Ċ, the tabulator ĉ, the byte 0xAD Ń."""
    assert [spell(f"{mark}a") for mark in "ĠĊĉ"] == [" a", "\na", "\ta"]
    assert spell("Â\u0143") == "\xad"


def test_a_nearly_even_answer_is_soft():
    tokens = [place("No", math.exp(-0.6), Yes=1 - math.exp(-0.6))]
    assert YES_NO.expect(YES_NO.parse(reply("No")), tokens) == pytest.approx(1 - math.exp(-0.6))


def test_words_that_begin_several_answers_are_none():
    options = Options({"one": 1.0, "other": 0.0})
    tokens = [place("one", 0.6, other=0.2, o=0.2)]
    assert options.expect(options.parse(reply("one")), tokens) == pytest.approx(0.75)
    tokens = [place("o", 0.6, one=0.2, other=0.2), place("ne", 1.0)]
    assert options.expect(options.parse(reply("one")), tokens) is None
