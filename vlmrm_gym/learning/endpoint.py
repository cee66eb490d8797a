"""EndpointLabeler asks a vision-language model behind an OpenAI-compatible server about pairs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from vlmrm_gym._util.errors import say
from vlmrm_gym._util.validation import UNAFFECTED, check_size, is_number
from vlmrm_gym.learning.labelers import LabelerSpec
from vlmrm_gym.learning.pairs import Answer, Pair
from vlmrm_gym.learning.pictures import montage, spread
from vlmrm_gym.rewards.clip import check_count
from vlmrm_gym.rewards.endpoint.messages import Message, Options, ask_about, encode, strip_reasoning
from vlmrm_gym.rewards.endpoint.questioner import Question, Questioner
from vlmrm_gym.rewards.endpoint.settings import EndpointSettings

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
    """Build a message of two PNG images and a request."""
    shown = [(f"Image {number}:", image) for number, image in enumerate(images, 1)]
    return ask_about(INTRODUCTION.format(prompt=prompt), shown, request)


@dataclass(frozen=True, kw_only=True)
class EndpointLabeler(EndpointSettings, LabelerSpec):
    """Asks a vision-language model which of two images is closer to the goal (RL-VLM-F, arXiv 2402.03681).

    Every pair is asked in both orders, since models prefer one position. With p and q, the probabilities that the
    second is closer as each order has them, the preference is (p + q) / 2 and the confidence 1 - abs(p - q): if the
    orders contradict each other, the preference is 0.5 and has no weight. A reply that is no answer is asked
    for again, once; if the second is none either, the pair has no preference.

    Raises:
        ValueError: A value is out of its range; the message names the field.
    """

    stages: Literal[1, 2] = 2
    """2: the model describes the images, and is then asked about its description (RL-VLM-F). 1: it is asked about the
    images; the preference is the expectation over the answer's tokens, or over `votes` replies if the server gives no
    log probabilities."""
    num_frames: int = field(default=1, metadata={"check": check_count})
    """States of a segment in its image, from left to right: the last, and others evenly before it."""
    views: Any = None
    """MuJoCo environments only: own cameras, as `camera` of `VLMReward`; None: those of the pair."""
    size: tuple[int, int] | None = field(default=None, metadata={"check": check_size})
    """Height and width at which states are drawn, in pixels; None: as the pair's frames."""
    price: tuple[float, float] | None = field(default=None, metadata=UNAFFECTED)
    """Cost of a million tokens in and out, in dollars, for lines about progress."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stages not in (1, 2):
            raise ValueError(f"`stages` must be 1 or 2. Received {self.stages!r}.")
        if self.price is not None:
            price = tuple(self.price) if isinstance(self.price, Sequence) else ()
            if len(price) != 2 or not all(map(is_number, price)):
                raise ValueError(f"`price` must be two numbers, of tokens in and out. Received {self.price!r}.")
            object.__setattr__(self, "price", price)

    def answers(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Answer]]:
        """Ask about all pairs, several at a time, until the budget is used up. Raises as `Questioner.answer`."""
        calls, num_answered = {"sends": 4} if self.stages == 2 else {"estimates": 2}, 0
        for number, answer in self._questioner.answer(map(self._draw, pairs), self._ask, **calls):
            num_answered += 1
            yield number, answer
        if num_answered < len(pairs):
            say(f"{self.used_up}: {len(pairs) - num_answered} of {len(pairs)} pairs were not asked.")

    def close(self) -> None:
        """End the connection."""
        if (questioner := vars(self).pop("_questioner", None)) is not None:
            questioner.close()

    @cached_property
    def _questioner(self) -> Questioner:
        return Questioner(self, logprobs=self.stages == 1)

    def _draw(self, pair: Pair) -> tuple[str, list[np.ndarray]]:
        """The prompt and both images. Renderers are for one thread: that of the caller."""
        images = list[np.ndarray]()
        for side in (pair.first, pair.second):
            chosen = side.states[spread(len(side), self.num_frames)]
            images.append(montage(pair.draw(chosen, size=self.size, views=self.views)))
        return pair.prompt, images

    def _ask(self, drawn: tuple[str, list[np.ndarray]], question: Question) -> Answer:
        prompt, files = drawn[0], [encode(image) for image in drawn[1]]
        one = self._ask_in_order(prompt, files, question)
        other = None if one is None else self._ask_in_order(prompt, files[::-1], question)
        if one is None or other is None:
            return Answer(preference=None, details={**question.details, "dropped": "not an answer"})
        orders = [one, 1 - other]
        details = {**question.details, "orders": orders}
        return Answer(preference=sum(orders) / 2, confidence=1 - abs(orders[0] - orders[1]), details=details)

    def _ask_in_order(self, prompt: str, files: Sequence[bytes], question: Question) -> float | None:
        """The probability that the second of two images is closer to the goal; None if there is no answer."""
        questioner = self._questioner
        if self.stages == 2:
            described = questioner.send(show_pair(prompt, files, DESCRIBE), question)
            if not (description := strip_reasoning(described.text or "")):
                return None
            text = JUDGE.format(description=description, prompt=prompt) + QUESTION
            answer, _ = questioner.ask([{"role": "user", "content": text}], question, OPTIONS)
            return None if answer is None else answer.value
        return questioner.estimate(show_pair(prompt, files, QUESTION), question, OPTIONS)
