"""Messages to a vision-language model, questions with options, and the options in its replies."""

import base64
import io
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rewards.endpoint.reply import Reply, Token

Message = dict[str, Any]
"""A message of the chat completions API."""


def encode(picture: NDArray[np.uint8]) -> bytes:
    """Encode a picture, uint8 (H, W, 3), as the bytes of a PNG file."""
    from PIL import Image

    Image.fromarray(picture).save(stream := io.BytesIO(), "PNG")
    return stream.getvalue()


def ask_about(introduction: str, images: Sequence[tuple[str, bytes]], request: str) -> list[Message]:
    """Build a message of PNG images, each below its name, and a request; the part that servers can cache is first."""
    content: list[dict[str, Any]] = [{"type": "text", "text": introduction}]
    for name, image in images:
        url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
        content.append({"type": "text", "text": name})
        content.append({"type": "image_url", "image_url": {"url": url}})
    return [{"role": "user", "content": [*content, {"type": "text", "text": request}]}]


def strip_reasoning(text: str) -> str:
    """Strip a reasoning block. Returns an empty text if the block was never closed."""
    text = re.sub(r"(?s)<(think|thinking|reasoning)>.*?(</\1>|\Z)", "", text)
    return re.split(r"</(?:think|thinking|reasoning)>", text)[-1].strip()  # the opening tag may be in the template


_MARK = re.compile(
    r"\b(?:answer|rating|score|verdict|judge?ment|conclusion|choice|preference|decision|winner)\b\W*"
    r"(?:(?:is|of|as)\b)?"
)
_NUMBERING = re.compile(r"\W*\d+[.)][ \t]+\S")
"""The beginning of a numbered line: no answer."""
_END_OF_TEXT = re.compile(r"(?s)\s*(?:<.*>)?\s*")
"""Tokens after the text, such as <|im_end|>."""
_MAX_TOTAL = 1.02
"""The most that the probabilities in a place may sum to, as servers round them."""
_MAX_UNLISTED = 0.1
"""The most probability that may be outside of the list if only one of the answers is in it."""


class ParsedAnswer(NamedTuple):
    """The answer in a text."""

    value: float
    rest: str
    """The text from where the answer begins."""


class Options:
    """Maps the words and digits that answer a question, in lower case, to their values.

    `noun` is a pattern of what may stand beside an answer, such as "image" in "Image 2".
    """

    def __init__(self, values: Mapping[str, float], noun: str = "") -> None:
        self.values = values
        words = "|".join(sorted(map(re.escape, values), key=len, reverse=True))
        top = max((word for word in values if word.isdecimal()), default="-")
        before, after = (rf"(?:the )?(?:{noun}\W{{0,2}})?", rf"(?: (?:{noun}|one)\b)?") if noun else ("", "")
        named = rf"(?:[^\w-]|-(?=\s))*{before}(?P<answer>{words})(?!\w){after}"
        follows = [r"[.!;,)(\]}]", rf"(?:/|out of)\s*{top}\b", r"\s[\u2013\u2014-]\s", r"$", r"(?:because|since|as)\b"]
        follows += [r"is (?:the )?(?:closer|closest|nearer|nearest|better|best)\b"] if noun else []
        self._begins = re.compile(
            rf"{named}(?![.,]\d)(?!\s*(?:[,&\u2013\u2014-]|or|and)\s*(?:{words})\b)(?=\s*(?:{'|'.join(follows)}))",
            re.MULTILINE,
        )
        self._alone = re.compile(rf"{named}\W*\Z")

    def parse(self, reply: Reply) -> ParsedAnswer | None:
        """Find the answer in a reply: its whole text, after the word "answer", or its first or last line.

        An explanation may follow it. Returns None if there is none, or the first and the last line differ.
        """
        text = re.sub(r"[*_`\"]", "", strip_reasoning(reply.text or "")).lower().strip()
        if (alone := self._alone.match(text)) or reply.truncated:
            return self._read(alone)
        for mark in reversed(list(_MARK.finditer(text))):
            if marked := self._begins.match(text, mark.end()):
                return self._read(marked)
        last_line = text.rfind("\n") + 1
        is_list = last_line and _NUMBERING.match(text)
        matches = [] if is_list else [self._begins.match(text, start) for start in (0, last_line)]
        matches.append(self._alone.match(text, max(one.end() for one in re.finditer(r"\A|[.!?\n]\s+", text))))
        answers = [one for one in map(self._read, matches) if one is not None]
        return answers[0] if len({one.value for one in answers}) == 1 else None

    def _read(self, match: re.Match[str] | None) -> ParsedAnswer | None:
        if match is None:
            return None
        return ParsedAnswer(self.values[match["answer"]], match.string[match.start("answer") :])

    def expect(self, answer: ParsedAnswer, tokens: Sequence[Token]) -> float | None:
        """Compute the expectation over the tokens that could have begun an answer; None where they do not tell.

        The tokens are those of the whole text, and may begin with others, such as reasoning.
        """
        tokens = list(tokens)
        while tokens and _END_OF_TEXT.fullmatch(tokens[-1].text):
            tokens.pop()
        text, rest = "", _squeeze(answer.rest)
        places = dict[int, Token]()
        for token in tokens:
            places[len(text)] = token  # of several, the last is the one that has letters
            text += _squeeze(token.text)
        token = places.get(len(text) - len(rest))
        if not text.endswith(rest) or token is None or not token.alternatives:
            return None
        listed, chosen = list(token.alternatives), (token.text, token.probability)
        if chosen[0] not in dict(listed) and sum(weight for _, weight in (chosen, *listed)) <= _MAX_TOTAL:
            listed.append(chosen)
        weights = defaultdict[float, float](float)
        for word, weight in listed:
            if (value := self._begin(word)) is not None:
                weights[value] += weight
        total, answered = sum(weight for _, weight in listed), sum(weights.values())
        if self._begin(token.text) != answer.value or not weights[answer.value] or total > _MAX_TOTAL:
            return None
        if len(weights) == 1 and 1 - total > _MAX_UNLISTED:
            return None
        return sum(value * weight for value, weight in weights.items()) / answered

    def _begin(self, token: str) -> float | None:
        """The value of the answer that a token is or begins; None if it begins none, or several."""
        word, rest = re.fullmatch(r"(?s)[^a-z0-9-]*(-?[a-z0-9]*)(.*)", token.lower()).groups()  # pyright: ignore
        if not word or (rest and (word not in self.values or re.match(r"[.,]\d", rest))):
            return None
        values = {value for option, value in self.values.items() if option.startswith(word)}
        return self.values.get(word, values.pop() if len(values) == 1 else None)


def _squeeze(text: str) -> str:
    """Keep a text's letters and digits, which all spellings of its tokens share."""
    return re.sub(r"[^a-z0-9-]", "", text.lower())
