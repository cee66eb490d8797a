"""What a vision-language model is asked about a state, and how its answers are read."""

import re
from collections.abc import Mapping, Sequence

from vlmrm_gym.endpoint.messages import Message, ask_about, bare, plain

INTRODUCTION = "You look at a scene, and judge whether a goal is reached. The goal is: {prompt}"
SEVERAL = "\nThe images show the same moment from different sides. Judge by all of them together."
IS_REACHED = "Is the goal reached? Answer with one word and nothing else: yes or no."
RATE = (
    "How near is the goal to being reached? Answer with one digit and nothing else: from 0, nothing of it is reached, "
    "to {top}, it is reached completely."
)
_MARK = r"\b(?:answer|rating|score|verdict|judge?ment|conclusion)\b"


def make_options(classes: int | None) -> Mapping[str, float]:
    """The answers, and the reward of each, from 0 to 1: yes and no, or digits."""
    if classes is None:
        return {"no": 0.0, "yes": 1.0}
    return {str(digit): digit / (classes - 1) for digit in range(classes)}


def make_question(prompt: str, views: Sequence[bytes], classes: int | None) -> list[Message]:
    """The question about a state.

    Args:
        prompt: The goal.
        views: A PNG image of each view.
        classes: Number of classes of a rating; None: yes or no.
    """
    introduction = INTRODUCTION.format(prompt=prompt) + (SEVERAL if len(views) > 1 else "")
    request = IS_REACHED if classes is None else RATE.format(top=classes - 1)
    return ask_about(introduction, [(f"Image {number}:", view) for number, view in enumerate(views, 1)], request)


def parse(text: str | None, options: Mapping[str, float], *, truncated: bool = False) -> float | None:
    """Read an answer: its reward; None if it is none of the options, or says several.

    An option is understood as the first word, after a word such as "answer", or as the last sentence.

    >>> parse("<think>yes or no?</think> **No.**", make_options(None)), parse("Rating: 3/4", make_options(5))
    (0.0, 0.75)
    """
    said = plain(text)
    if bare(said) in options or truncated:
        return options.get(bare(said))
    words = "|".join(options)
    begins = re.compile(rf"\W*({words})\b(?![.,]\d| or | doubt| question)")
    marked = re.findall(rf"{_MARK}[\s\W]*(?:is|of|as)?\s*(.*)", said)
    for part in (*reversed(marked), said, *said.splitlines()[-1:]):
        if found := begins.match(part):
            return options[found[1]]
    last = bare(re.split(r"(?<=[.!?])\s+", said)[-1])
    numbers = set(re.findall(r"\d+(?:\.\d+)?", said))
    return options.get(numbers.pop() if len(numbers) == 1 else last)
