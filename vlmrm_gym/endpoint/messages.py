"""Parts of messages of the chat completions API, and how answers in words are read."""

import base64
import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Message = dict[str, Any]
"""A message of the chat completions API."""


class Token(NamedTuple):
    """A token of an answer, with the most probable tokens in its place and the logarithms of their probabilities."""

    text: str
    alternatives: Sequence[tuple[str, float]]


def encode(picture: NDArray[np.uint8], kind: str = "PNG") -> bytes:
    """The bytes of a picture's file, uint8 (H, W, 3) in."""
    from PIL import Image

    Image.fromarray(picture).save(stream := io.BytesIO(), kind)
    return stream.getvalue()


def ask_about(introduction: str, images: Sequence[tuple[str, bytes]], request: str) -> list[Message]:
    """PNG images, each below its name, and a request. What requests share comes first: servers keep it."""
    content: list[dict[str, Any]] = [{"type": "text", "text": introduction}]
    for name, image in images:
        url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
        content.append({"type": "text", "text": name})
        content.append({"type": "image_url", "image_url": {"url": url}})
    return [{"role": "user", "content": [*content, {"type": "text", "text": request}]}]


def without_thinking(text: str) -> str:
    """A text without what a model thought before it. What was cut off while thinking is empty."""
    text = re.sub(r"(?s)<(think|thinking|reasoning)>.*?(</\1>|\Z)", "", text)
    return re.split(r"</(?:think|thinking|reasoning)>", text)[-1].strip()  # the opening tag may be in the template


def plain(text: str | None) -> str:
    """A text without thinking and marks of emphasis, in lower case."""
    return re.sub(r"[*_`\"]", "", without_thinking(text or "")).lower().strip()


def bare(text: str) -> str:
    """A word or number without spaces, punctuation and brackets around it, in lower case."""
    return text.lower().strip(" \t\n.,:;!()[]{}<>'\"")


def expect(answer: float, tokens: Sequence[Token], read: Callable[[str], float | None]) -> float:
    """The expectation of an answer over the tokens that could have been in its place.

    Args:
        answer: What was read in the text.
        tokens: Of the whole text: the last that says the answer is taken. Spaces around tokens do not matter.
        read: From the text of a token to the answer that it says; None if it says none.
    """
    for token in reversed(tokens):
        if read(token.text) != answer:
            continue
        said = [(read(text), math.exp(log_probability)) for text, log_probability in token.alternatives]
        weights = [(value, weight) for value, weight in said if value is not None]
        if total := sum(weight for _, weight in weights):
            return sum(value * weight for value, weight in weights) / total
    return answer
