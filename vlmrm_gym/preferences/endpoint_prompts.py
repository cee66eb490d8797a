"""What a vision-language model is asked, and how its answers are read."""

import re
from collections.abc import Sequence

from vlmrm_gym.endpoint.messages import Message, ask_about, bare, plain

INTRODUCTION = (
    "You compare two images of a scene, Image 1 and Image 2, with respect to a goal. The goal is: {prompt}\n"
    "An image may be a row of moments, in the order of time from left to right, or a column of views of one moment: "
    "then compare the last moment."
)
TRAJECTORY = "\nA line from blue to red, if there is one, shows how the scene moved until the moment of the image."
DESCRIBE = (
    "Look at each image. Describe what matters for the goal: what is where, and how far each image is from the goal. "
    "Then say in what respect the two images differ."
)
QUESTION = (
    "In which of the two images is the goal closer to being reached? Answer with one digit and nothing else: 1 for "
    "Image 1, 2 for Image 2, 0 if both are equally close or it cannot be told."
)
JUDGE = (
    "Two images of a scene, Image 1 and Image 2, were described as follows:\n\n{description}\n\nThe goal is: {prompt}\n"
)


def show_pair(prompt: str, images: Sequence[bytes], request: str, *, trajectory: bool = False) -> list[Message]:
    """Two PNG images, and a request."""
    introduction = INTRODUCTION.format(prompt=prompt) + (TRAJECTORY if trajectory else "")
    return ask_about(introduction, [(f"Image {number}:", image) for number, image in enumerate(images, 1)], request)


def judge(prompt: str, description: str) -> list[Message]:
    """The question, about images that were described: text alone."""
    return [{"role": "user", "content": JUDGE.format(description=description, prompt=prompt) + QUESTION}]


_NOUN = r"(?:image|picture|frame|option|choice|number|no\.?|#)"
_WORDS = {
    0.0: rf"\b(?:first|1st|former)\b|{_NOUN}\s*(?:1|one|a)\b",
    1.0: rf"\b(?:second|2nd|latter)\b|{_NOUN}\s*(?:2|two|b)\b",
    0.5: r"\b(?:neither|equal|equally|same|tied?|no preference|no difference|indistinguishable)\b",
}
_BARE = {"1": 0.0, "a": 0.0, "first": 0.0, "2": 1.0, "b": 1.0, "second": 1.0, "0": 0.5, "-1": 0.5, "neither": 0.5}
_BEGINS = re.compile(r"\W*[012](?![.,]\d)\s*(?:[.,:;()]|because\b|since\b|as\b)")
"""A digit, and an explanation."""
_DENIES = re.compile(
    r"\b(?:farther|further|worse|worst)\b|"
    r"(?:\b(?:not|never|less)|n't)\s+(?:\w+\s+){0,2}(?:closer?|nearer?|better|preferred|image|first|second)\b"
)
"""What turns a sentence around: it is no answer then."""
_MARK = r"\b(?:answer|choice|preference|verdict|decision|winner|conclusion)\b"


def parse_answer(text: str | None, *, truncated: bool = False) -> float | None:
    """Read an answer: 0 Image 1, 1 Image 2, 0.5 neither; None if it says nothing of that kind, or both.

    A digit alone, a digit after "answer", and sentences are understood, also after a preamble.

    >>> parse_answer("<think>Image 1 leans.</think>**2**"), parse_answer("Image 1 is closer than Image 2.")
    (1.0, 0.0)
    """
    said = plain(text)
    if (found := read_bare(said)) is not None or truncated:
        return found
    lines = said.splitlines() or [""]
    first = lines[0] if len(lines) == 1 or read_bare(lines[0]) is not None else ""
    marked = re.findall(rf"{_MARK}\s*(?:is|:|=|-)*\s*(.*)", said)
    last_sentence = re.split(r"(?<=[.!?])\s+", lines[-1])[-1]
    found = [_read_beginning(part) for part in (*reversed(marked), first)]
    found += [_read_part(part) for part in (*reversed(marked), lines[-1], last_sentence, said)]
    return next((one for one in found if one is not None), None)


def read_bare(text: str) -> float | None:
    """A text that is an answer and nothing else."""
    return _BARE.get(bare(text))


def _read_beginning(text: str) -> float | None:
    """A text that is an answer, or begins with its digit and has no other, but as the number of an image."""
    digits = set(re.findall(r"\b[012]\b", re.sub(rf"{_NOUN}\s*[012]", "", text)))
    return read_bare(digits.pop() if len(digits) == 1 and _BEGINS.match(text) else text)


def _read_part(text: str) -> float | None:
    """What a text mentions, if it is one of the two images; what comes after "than" is what that is compared to."""
    if (found := read_bare(text)) is not None or _DENIES.search(text):
        return found
    text = re.sub(r"\b(?:than|compared (?:to|with)|rather than|over|unlike|whereas|while)\b[^.;\n]*", "", text)
    mentioned = {value for value, words in _WORDS.items() if re.search(words, text)}
    if mentioned == {0.0, 1.0, 0.5}:  # "Image 1 and Image 2 are equally close"
        return 0.5
    return mentioned.pop() if len(mentioned) == 1 else None
