"""The answers that a question allows, and how they are read in a text and in its tokens."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vlmrm_gym.endpoint.messages import without_thinking
from vlmrm_gym.endpoint.reply import Reply, Token

_MARK = re.compile(
    r"\b(?:answer|rating|score|verdict|judge?ment|conclusion|choice|preference|decision|winner)\b\W*"
    r"(?:(?:is|of|as)\b)?"
)
_NUMBERING = re.compile(r"\W*\d+[.)][ \t]+\S")
"""Of the lines of a list: no answer."""
_END_OF_TEXT = re.compile(r"(?s)\s*(?:<.*>)?\s*")
"""Tokens that are not of the text, such as <|im_end|>."""
_MAX_TOTAL = 1.02
"""Of all probabilities in a place, as servers round them."""
_MAX_UNLISTED = 0.1
"""Of the probability, that may be in no list if only one of the answers is in it."""


class Found(NamedTuple):
    """An answer in a text."""

    value: float
    rest: str
    """The text from where the answer begins."""


class Options:
    """The answers to a question: the value of each word or digit that is one, in lower case.

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

    def parse(self, reply: Reply) -> Found | None:
        """The answer of a reply, if its text is one, or has it after "answer", or as its first or last line.

        An explanation may follow it. Where the first and the last line differ, there is none.
        """
        said = re.sub(r"[*_`\"]", "", without_thinking(reply.text or "")).lower().strip()
        if (alone := self._alone.match(said)) or reply.truncated:
            return self._read(alone)
        for mark in reversed(list(_MARK.finditer(said))):
            if marked := self._begins.match(said, mark.end()):
                return self._read(marked)
        last_line = said.rfind("\n") + 1
        is_list = last_line and _NUMBERING.match(said)
        found = [] if is_list else [self._begins.match(said, start) for start in (0, last_line)]
        found.append(self._alone.match(said, max(one.end() for one in re.finditer(r"\A|[.!?\n]\s+", said))))
        answers = [one for one in map(self._read, found) if one is not None]
        return answers[0] if len({one.value for one in answers}) == 1 else None

    def _read(self, found: re.Match[str] | None) -> Found | None:
        if found is None:
            return None
        return Found(self.values[found["answer"]], found.string[found.start("answer") :])

    def expect(self, found: Found, tokens: Sequence[Token]) -> float | None:
        """The expectation over the tokens that could have begun the answer found; None where they do not tell.

        The tokens are of the whole text. What stands before the answer need not be in the text, as thoughts.
        """
        tokens = list(tokens)
        while tokens and _END_OF_TEXT.fullmatch(tokens[-1].text):
            tokens.pop()
        said, rest = "", _squeeze(found.rest)
        places = dict[int, Token]()
        for token in tokens:
            places[len(said)] = token  # of several, the last is the one that has letters
            said += _squeeze(token.text)
        token = places.get(len(said) - len(rest))
        if not said.endswith(rest) or token is None or not token.alternatives:
            return None
        listed, own = list(token.alternatives), (token.text, token.probability)
        if own[0] not in dict(listed) and sum(weight for _, weight in (own, *listed)) <= _MAX_TOTAL:
            listed.append(own)
        weights = defaultdict[float, float](float)
        for text, weight in listed:
            if (value := self._begin(text)) is not None:
                weights[value] += weight
        total, answered = sum(weight for _, weight in listed), sum(weights.values())
        if self._begin(token.text) != found.value or not weights[found.value] or total > _MAX_TOTAL:
            return None
        if len(weights) == 1 and 1 - total > _MAX_UNLISTED:
            return None
        return sum(value * weight for value, weight in weights.items()) / answered

    def _begin(self, token: str) -> float | None:
        """The answer that a token says, or begins; None if it is none, or the beginning of several."""
        word, rest = re.fullmatch(r"(?s)[^a-z0-9-]*(-?[a-z0-9]*)(.*)", token.lower()).groups()  # pyright: ignore
        if not word or (rest and (word not in self.values or re.match(r"[.,]\d", rest))):
            return None
        values = {value for option, value in self.values.items() if option.startswith(word)}
        return self.values.get(word, values.pop() if len(values) == 1 else None)


def _squeeze(text: str) -> str:
    """A text's letters and digits, which all spellings of its tokens share."""
    return re.sub(r"[^a-z0-9-]", "", text.lower())
