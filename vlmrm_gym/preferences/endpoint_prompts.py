"""What a vision-language model is asked about a pair, and the answers to choose from."""

from collections.abc import Sequence

from vlmrm_gym.endpoint.messages import Message, ask_about
from vlmrm_gym.endpoint.options import Options

INTRODUCTION = (
    "You compare two images of a scene, Image 1 and Image 2, with respect to a goal. The goal is: {prompt}\n"
    "An image may be a row of moments, in the order of time from left to right, or a column of views of one moment: "
    "then compare the last moment."
)
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
_FIRST, _SECOND, _NEITHER = (
    ("1", "a", "first", "1st", "one"),
    ("2", "b", "second", "2nd", "two"),
    ("0", "-1", "neither"),
)
OPTIONS = Options(
    dict.fromkeys(_FIRST, 0.0) | dict.fromkeys(_SECOND, 1.0) | dict.fromkeys(_NEITHER, 0.5),
    noun=r"(?:image|picture|frame|option|choice|number|no\.?|#)",
)
"""0 Image 1, 1 Image 2, 0.5 neither."""


def show_pair(prompt: str, images: Sequence[bytes], request: str) -> list[Message]:
    """Two PNG images, and a request."""
    shown = [(f"Image {number}:", image) for number, image in enumerate(images, 1)]
    return ask_about(INTRODUCTION.format(prompt=prompt), shown, request)


def judge(prompt: str, description: str) -> list[Message]:
    """The question, about images that were described: text alone."""
    return [{"role": "user", "content": JUDGE.format(description=description, prompt=prompt) + QUESTION}]
