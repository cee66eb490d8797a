"""What is asked; answers are read in texts, and what is none is not taken for one; and expectations."""

import pytest

from vlmrm_gym.learning.endpoint import OPTIONS as PREFERENCES
from vlmrm_gym.learning.endpoint import show_pair
from vlmrm_gym.rewards.endpoint.messages import Options, strip_reasoning
from vlmrm_gym.rewards.endpoint.reply import Reply, Token, spell
from vlmrm_gym.rewards.endpoint.reward import make_options, make_question

YES_NO, RATINGS = make_options(None), make_options(5)


def reply(text, tokens=None, truncated=False):
    return Reply(text=text, tokens=tokens, truncated=truncated, model="m", input_tokens=1, output_tokens=1)


def parse(options, text, **more):
    found = options.parse(reply(text, **more))
    return None if found is None else found.value


READ = {
    1: [
        "Yes", "(Yes)", "Yes, there is no tilt.", "Yes - it stands",
        "Answer: yes", "The pole is vertical.\nYes.", "Yes, it stands.\n\nThe pole is vertical.",
        "It stands upright. Yes.", "No doubt about it. Yes.",
    ],
    0: [
        "**No**", "NO!", "No, the pole leans.", "No because it leans", '{"answer": "no"}', "The answer is no.",
        "<think>Is it? No. Yes?</think>No",
    ],
    None: [
        "I cannot say yes.", "", None, "I have no idea.", "There is no pole in the image.",
        "Yes or no? It cannot be told.", "No, no.", "Yes.\nNo.", "Yes, at first. No.",
        "Answer: yes or no?", "No question, it stands upright.", "<think>It is, yes",
        "I'm sorry, but I can't help with that.", "3",
    ],
}  # fmt: skip
RATED = {
    0.75: ["3", "3/4", "It leans.\n3", "<think>4 or 3?</think>3"],
    1: ["**4**", "Rating: 4 / 4"],
    0: ["0."],
    0.5: ["Rating: 2", "2 out of 4", "2 - it leans"],
    0.25: ["I would give a rating of 1."],
    None: [
        "4/10", "2-3", "5", "12", "-1", "2.5", "-", "It leans by 10 degrees.",
        "Somewhere between 2 and 3", "1. The pole leans.\n2. The cart stands.", "yes",
    ],
}  # fmt: skip
PREFERRED = {
    0: [
        "1", "**1**", "(A)", "Image 1.", "The first image is closer to the goal.", "Final answer: Image 1",
        '```json\n{"choice": "first"}\n```', "1 (Image 2 leans.)",
        "Image 1 stands. Answer: 1. The pole of image 2 leans.",
    ],
    1: [
        "2", "B", "Image 2", "The second one.", "Image 2 is closer than image 1.",
        "Answer: 2", "Image 1 leans by 30 degrees.\nImage 2 leans by 2 degrees.\n\nAnswer: 2",
        "Let me see. Image 1 leans. Image 2 stands.\n2", "<think>1 or 2? The answer: 1. No.</think>2",
        "Hm, image 1.</think>\n\nImage 2", "2. In Image 1 the pole has fallen.",
        "2, because the pole in image 1 has fallen", "2\n\nIn image 1 the pole has fallen.",
    ],
    0.5: ["0", "-1", "My answer is 0, as they look the same.", "Neither."],
    None: [
        "1, 2", "1 and 2", "Image 1 and Image 2 are equally close.",
        "Image 1 is farther from the goal than image 2.", "Image 2 is not closer.",
        "Image 1 isn't any closer to the goal.",
        "Image 1: the pole leans.\nImage 2: it stands.", "1. Image 1 leans.\n2. Image 2 stands.",
        "2.5 degrees is how far the pole of image 1 leans.", "", None, "I'm sorry, but I can't help with that.",
        "Image 1 shows a pole, and image 2 shows a pole.", "The pole leans by 2 degrees.",
        "<think>It is image 1, as", "3", "12",
    ],
}  # fmt: skip


def test_answers_are_read_and_prose_is_not_guessed_at():
    """What was cut off is an answer only if it is bare; thinking is left out."""
    for options, texts in [(YES_NO, READ), (RATINGS, RATED), (PREFERENCES, PREFERRED)]:
        expected = {text: answer for answer, own in texts.items() for text in own}
        assert {text: parse(options, text) for text in expected} == expected
    assert parse(YES_NO, "yes", truncated=True) == 1
    assert parse(YES_NO, "Yes, but", truncated=True) is parse(PREFERENCES, "Image 1 is", truncated=True) is None
    assert strip_reasoning("<think>a</think>b<thinking>c</thinking> d") == "b d"


def place(token, share, **others):
    """A token, and others in its place, by their probabilities; underscores are spaces."""
    listed = [(name.replace("_", " "), weight) for name, weight in others.items()]
    return Token(token, share, [*listed, (token, share)])


EOS = Token("<|im_end|>", 1.0, [("<|im_end|>", 1.0)])
EXPECTED = {
    "spellings add up": (YES_NO, "Yes", [place("Yes", 0.4, _Yes=0.2, No=0.1, _No=0.3)], 0.6),
    "over the answers alone": (YES_NO, "Yes", [place("Yes", 0.3, No=0.2, The=0.4, Maybe=0.1)], 0.6),
    "the token itself, and its other spelling": (YES_NO, "Yes", [Token("Yes", 0.5, [(" Yes", 0.2), ("No", 0.3)])], 0.7),
    "in parts": (YES_NO, "Yes", [place("Y", 0.7, N=0.3), place("es", 1.0)], 0.7),
    "a part against a word": (YES_NO, "No", [place("No", 0.3, Y=0.7)], 0.7),
    "with a mark": (YES_NO, "Yes.", [place("Yes.", 0.7, No=0.2, **{"No.": 0.1})], 0.7),
    "after marks": (YES_NO, "**Yes**", [place("**", 0.9, Yes=0.1), place("Yes", 0.7, No=0.3), place("**", 1.0)], 0.7),
    "after thoughts": (YES_NO, "Yes", [
        place("No", 0.9, Yes=0.1), place("</think>", 1.0), place("Yes", 0.7, No=0.3), EOS], 0.7),
    "before an explanation": (YES_NO, "No, it leans: no.", [
        place("No", 0.3, Yes=0.7), place(",", 1.0), place(" it leans: ", 1.0), place("no", 0.9, yes=0.1)], 0.7),
    "of a fraction": (RATINGS, "4/4", [place("4", 0.5, **{"2": 0.5}), place("/", 1.0), place("4", 1.0)], 0.75),
    "of a rating": (RATINGS, "Rating: 3", [place("Rating", 1.0), place(":", 1.0), place(" 3", 0.5, _1=0.5)], 0.5),
    "nearly all of it": (YES_NO, "Yes", [place("Yes", 0.98)], 1.0),
    "impossible ones": (YES_NO, "Yes", [place("Yes", 0.7, No=0.3, NO=0.0)], 0.7),
    "of a pair": (PREFERENCES, "Image 2", [place("Image", 1.0), place(" 2", 0.5, _1=0.3, _0=0.2)], 0.6),
    "in a word": (PREFERENCES, "The second image is closer.", [
        place("The", 1.0), place(" second", 0.8, _first=0.2), place(" image", 1.0), place(" is", 1.0),
        place(" closer", 1.0), place(".", 1.0)], 0.8),
    "of minus one": (PREFERENCES, "-1", [place("-", 0.5, **{"1": 0.25, "2": 0.25}), place("1", 1.0)], 0.5),
}  # fmt: skip


def test_the_expectation_is_over_the_tokens_that_begin_the_answer():
    found = {name: own[0].expect(own[0].parse(reply(own[1])), own[2]) for name, own in EXPECTED.items()}
    assert found == pytest.approx({name: own[3] for name, own in EXPECTED.items()}, rel=1e-6)


UNTOLD = {
    "no tokens": ("Yes", []),
    "more than all": ("Yes", [place("Yes", 1.0, No=1.0)]),
    "one answer alone, and not nearly all": ("Yes", [place("Yes", 0.7)]),
    "of another text": ("Yes", [place("No", 0.7, Yes=0.3)]),
    "without an end": ("Yes", [place("Yes", 0.7, No=0.3), place(" or", 0.9)]),
    "within a token": ("Answer: Yes", [place("Answer:Yes", 0.7, No=0.3)]),
    "by number": ("Yes", [place("token_id:9642", 0.7, **{"token_id:2822": 0.3})]),
    "impossible": ("Yes", [place("Yes", 0.0, No=0.5)]),
}


def test_tokens_that_do_not_tell_give_no_number():
    found = {name: YES_NO.expect(YES_NO.parse(reply(text)), tokens) for name, (text, tokens) in UNTOLD.items()}
    assert found == dict.fromkeys(UNTOLD)


SPELLED = [
    ("Yes", None, "Yes"), ("ĠYes", None, " Yes"), ("ĊYes", None, " Yes"), ("▁Yes", None, " Yes"), ("ĉa", None, " a"),
    ("<0x0A>", None, "\n"), ("<0x31>", None, "1"), ("<0xE2>", None, "\ufffd"), ("Ń", None, " "),
    ("token_id:9642", list(b"Yes"), "Yes"), ("token_id:9642", list("ĠYes".encode()), " Yes"),
    ("token_id:9642", None, "token_id:9642"), ("Yes", [], "Yes"), ("Yes", [300], "Yes"), ("Yes", [True], "Yes"),
    ("Yes", "No", "Yes"),
]  # fmt: skip


def test_tokens_are_spelled_in_plain_text():
    """By GPT-2's own table, the space is Ġ, the line feed Ċ, the tabulator ĉ, the byte 0xAD Ń: here they are spaces."""
    assert [spell(token, encoded) for token, encoded, _ in SPELLED] == [text for *_, text in SPELLED]


def test_characters_of_several_bytes_do_not_hide_the_answer():
    """Byte-level BPE has three marks for an apostrophe, or a dash, and two for an accent."""
    for text, rest in (("Yes, it\u2019s é.", (", it", "âĢĻs", "ĠÃ©.")), ("Yes \u2013 up", ("ĠâĢĵ", "Ġup"))):
        tokens = [place("Yes", 0.7, No=0.3), *(place(spell(token), 1.0) for token in rest)]
        assert YES_NO.expect(YES_NO.parse(reply(text)), tokens) == pytest.approx(0.7)


def test_words_that_begin_several_answers_are_none():
    options = Options({"one": 1.0, "other": 0.0})
    tokens = [place("one", 0.6, other=0.2, o=0.2)]
    assert options.expect(options.parse(reply("one")), tokens) == pytest.approx(0.75)
    tokens = [place("o", 0.6, one=0.2, other=0.2), place("ne", 1.0)]
    assert options.expect(options.parse(reply("one")), tokens) is None


def test_the_question_comes_last_and_what_is_shared_first():
    """All views are in one question."""
    (message,) = make_question("a goal", [b"left", b"right"], 5)
    parts = [part.get("text", "image") for part in message["content"]]
    assert "a goal" in parts[0]
    assert "same moment" in parts[0]
    assert parts.count("image") == 2
    assert "to 4" in parts[-1]
    (message,) = show_pair("a goal", [b"first", b"second"], "Which?")
    kinds = [part["type"] for part in message["content"]]
    assert kinds == ["text", "text", "image_url", "text", "image_url", "text"]
    assert "a goal" in message["content"][0]["text"]
    assert message["content"][-1]["text"] == "Which?"
