"""What a vision-language model is asked about a state, and the answers to choose from."""

from collections.abc import Sequence

from vlmrm_gym.endpoint.messages import Message, ask_about
from vlmrm_gym.endpoint.options import Options

INTRODUCTION = "You look at a scene, and judge whether a goal is reached. The goal is: {prompt}"
SEVERAL = "\nThe images show the same moment from different sides. Judge by all of them together."
IS_REACHED = "Is the goal reached? Answer with one word and nothing else: yes or no."
RATE = (
    "How near is the goal to being reached? Answer with one digit and nothing else: from 0, nothing of it is reached, "
    "to {top}, it is reached completely."
)


def make_options(classes: int | None) -> Options:
    """The answers, and the reward of each, from 0 to 1: yes and no, or digits."""
    if classes is None:
        return Options({"no": 0.0, "yes": 1.0})
    return Options({str(digit): digit / (classes - 1) for digit in range(classes)})


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
