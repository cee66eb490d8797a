"""Answers by a vision-language model behind an OpenAI-compatible server."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import numpy as np

from vlmrm_gym.preferences import endpoint_prompts as prompts
from vlmrm_gym.preferences.endpoint_budget import Budget
from vlmrm_gym.preferences.endpoint_client import Client, NoLogProbabilities, Reply
from vlmrm_gym.preferences.labelers import LabelerSpec, undecisive
from vlmrm_gym.preferences.pairs import Answer, Pair, Side
from vlmrm_gym.preferences.pictures import check_size, draw_trajectory, encode, montage, spread
from vlmrm_gym.preferences.threads import start
from vlmrm_gym.terminal import say
from vlmrm_gym.validation import check_flag, check_integer, check_positive_integer, is_number, truncate

_REFUSED = ("model", "messages", "logprobs", "top_logprobs", "stream", "n", "extra_headers")
"""Fields of requests that are set here, or that may have a key in them."""


@dataclass(frozen=True, kw_only=True)
class EndpointLabeler(LabelerSpec):
    """Asks a vision-language model which of two images is closer to the goal (RL-VLM-F, arXiv 2402.03681).

    Every pair is asked in both orders, since models prefer one position. With p and q, the probabilities that the
    second is closer as each order has them, the preference is (p + q) / 2 and the confidence 1 - abs(p - q): if the
    orders contradict each other, the preference is 0.5 and has no weight. What cannot be read as an answer is dropped:
    the pair has no preference, and is not asked again.

    The key is read from the environment when the first question is asked, and is kept nowhere.

    Raises:
        TypeError: `request` is not a mapping.
        ValueError: A value is out of its range; the message names the field.
    """

    model: str
    """As the server names it."""
    base_url: str | None = undecisive(None)
    """Address of the server, such as `http://127.0.0.1:8000/v1`; None: the environment's `OPENAI_BASE_URL`, else
    OpenAI's."""
    key_variable: str | None = undecisive("OPENAI_API_KEY")
    """Environment variable that has the key; None: the server needs none."""
    stages: Literal[1, 2] = 2
    """2: the model describes the images, and is then asked about its description (RL-VLM-F). 1: it is asked about the
    images; the preference is the expectation over the answer's tokens, or the mean of `votes` answers if the server
    gives no log probabilities."""
    votes: int = 5
    """Answers to each question of one stage, if the server gives no log probabilities."""
    num_frames: int = 1
    """States of a segment in its image, from left to right: the last, and others evenly before it."""
    trajectory: bool = False
    """Whether the path of what moved in the segment is drawn onto its last state (VARP), see `draw_trajectory`."""
    views: Any = None
    """MuJoCo environments only: own cameras, as `camera` of `VLMReward`; None: those of the pair."""
    size: tuple[int, int] | None = None
    """Height and width at which states are drawn, in pixels; None: as the pair's frames."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of each request, such as {"temperature": 0, "max_completion_tokens": 300}."""
    call_budget: int | None = undecisive(None)
    """The most requests, over all sessions that share an answers' file; None: any number. No pair is begun that might
    not be finished."""
    token_budget: int | None = undecisive(None)
    """The most tokens, in and out, likewise. A pair is taken to need as many as the largest before it."""
    price: tuple[float, float] | None = undecisive(None)
    """Cost of a million tokens in and out, in dollars, for lines about progress."""
    concurrency: int = undecisive(8)
    """The most requests at a time."""
    timeout: float = undecisive(60.0)
    """Seconds for which one may take."""
    retries: int = undecisive(5)
    """How often one that fails is repeated, after `Retry-After` (up to two minutes) or longer and longer pauses."""
    kind: ClassVar[str] = "endpoint"

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ValueError(f"`model` must be a name that the server knows. Received {self.model!r}.")
        if self.base_url is not None:
            address = urlsplit(str(self.base_url))
            if address.scheme not in ("http", "https") or not address.hostname:
                raise ValueError(
                    f'`base_url` must be an address such as "http://127.0.0.1:8000/v1". Received {self.base_url!r}.'
                )
            if address.username or address.password or address.query:
                raise ValueError(
                    "`base_url` must not have a key, a password or a query in it, as it is written to files. Pass the "
                    "key by the environment."
                )
        if self.stages not in (1, 2):
            raise ValueError(f"`stages` must be 1 or 2. Received {self.stages!r}.")
        for name in ("votes", "num_frames", "concurrency"):
            check_positive_integer(name, getattr(self, name))
        for name in ("call_budget", "token_budget"):
            if getattr(self, name) is not None:
                check_positive_integer(name, getattr(self, name))
        check_integer("retries", self.retries, minimum=0)
        check_flag("trajectory", self.trajectory)
        if not is_number(self.timeout) or not 0 < self.timeout < np.inf:
            raise ValueError(f"`timeout` must be a positive number of seconds. Received {self.timeout!r}.")
        if not isinstance(self.request, Mapping):
            raise TypeError(f"`request` must be a mapping of names to values. Received {self.request!r}.")
        for name in _REFUSED:
            if name in self.request:
                raise ValueError(
                    f"`request` must not have {name!r}: the labeler sets it, or it may have a key, and this is written "
                    "to files."
                )
        object.__setattr__(self, "size", check_size(self.size))
        if self.price is not None:
            object.__setattr__(self, "price", tuple(self.price))

    def answers(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Answer]]:
        """Ask about all pairs, several at a time, until the budget is used up.

        The first question of all is asked alone: it shows whether the server answers, gives log probabilities, and how
        many tokens a pair takes.

        Raises:
            ValueError: No key.
            ConnectionError: The server cannot be reached, or does not answer in time.
            RuntimeError: The server answers with an error. What is under way is waited for and yielded before.
        """
        work, waiting, running = self._work, deque(enumerate(pairs)), dict[Future[Answer], int]()
        failure: BaseException | None = None
        while True:
            limit = self.concurrency if work.probed else 1
            while waiting and failure is None and len(running) < limit:
                if not work.budget.begin(calls := work.calls_per_pair):
                    break
                number, pair = waiting.popleft()
                images = self._draw(pair.first), self._draw(pair.second)  # here: renderers are for one thread
                running[start(work.ask, pair.prompt, images, calls)] = number
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                number = running.pop(future)
                if error := future.exception():
                    failure = failure or error
                else:
                    yield number, future.result()
        if failure is not None:
            raise failure
        if waiting:
            say(f"The budget of {self.model} is used up: {len(waiting)} of {len(pairs)} pairs were not asked.")

    def resume_spending(self, calls: int, tokens: int) -> None:
        """Count what was spent before, by this process or another."""
        self._budget.resume(calls, tokens)

    def close(self) -> None:
        """End the connection."""
        if (work := vars(self).pop("_work", None)) is not None:
            work.client.close()

    def _draw(self, side: Side) -> np.ndarray:
        if self.trajectory:
            return montage(draw_trajectory(side.draw(side.states, size=self.size, views=self.views))[None])
        wanted = np.zeros(len(side), bool)
        wanted[spread(len(side), self.num_frames)] = True
        return montage(side.draw(side.states[wanted], size=self.size, views=self.views))

    @cached_property
    def _budget(self) -> Budget:
        return Budget(self.call_budget, self.token_budget)

    @cached_property
    def _work(self) -> "_Work":
        return _Work(self, self._budget)


class _Work:
    """What an `EndpointLabeler` needs while it asks, and knows of the server."""

    def __init__(self, labeler: EndpointLabeler, budget: Budget) -> None:
        self._labeler, self.budget = labeler, budget
        self.client = Client(labeler.base_url, labeler.key_variable, labeler.timeout)
        self.probed = False
        """Whether a pair has been asked."""
        self._logprobs: bool | None = None if labeler.stages == 1 else False
        """Whether the server gives log probabilities; None: it has not been asked yet."""

    @property
    def calls_per_pair(self) -> int:
        """The most requests that a pair takes, if none fails."""
        if self._labeler.stages == 2:
            return 4
        return 2 if self._logprobs else 2 * self._labeler.votes + (self._logprobs is None)

    def ask(self, prompt: str, images: Sequence[np.ndarray], calls: int) -> Answer:
        """Ask about a pair, in both orders, for which so many calls are set aside."""
        asked, orders = _Asked(), list[float]()
        try:
            files = [encode(image) for image in images]
            for order in (files, files[::-1]):
                prefers_second = self._ask_in_order(prompt, order, asked)
                if prefers_second is None:
                    return Answer(preference=None, details={**asked.details, "dropped": "not an answer"})
                orders.append(prefers_second if order is files else 1 - prefers_second)
            details = {**asked.details, "orders": orders}
            return Answer(preference=sum(orders) / 2, confidence=1 - abs(orders[0] - orders[1]), details=details)
        finally:
            self.budget.end(calls - asked.sent, asked.tokens)
            self.probed = True

    def _ask_in_order(self, prompt: str, files: Sequence[bytes], asked: "_Asked") -> float | None:
        """The probability that the second of two images is closer to the goal; None if there is no answer."""
        trajectory = self._labeler.trajectory
        if self._labeler.stages == 2:
            described = self._send(prompts.show_pair(prompt, files, prompts.DESCRIBE, trajectory=trajectory), asked)
            if described.text is None or not (description := prompts.without_thinking(described.text)):
                return None
            judged = self._send(prompts.judge(prompt, description), asked)
            return prompts.parse_answer(judged.text, truncated=judged.truncated)
        messages, votes = prompts.show_pair(prompt, files, prompts.QUESTION, trajectory=trajectory), list[float]()
        for _ in range(self._labeler.votes):
            reply = self._send(messages, asked)
            vote = prompts.parse_answer(reply.text, truncated=reply.truncated)
            if vote is not None and reply.tokens:
                return prompts.expect_answer(vote, reply.tokens)
            if vote is not None:
                votes.append(vote)
            if self._logprobs:
                break  # another reply would be the same
        return sum(votes) / len(votes) if votes else None

    def _send(self, messages: Sequence[prompts.Message], asked: "_Asked") -> Reply:
        labeler, logprobs = self._labeler, self._logprobs is not False
        retries = self.budget.lend(labeler.retries)
        used = 1 + retries
        asked.sent += 1
        try:
            reply = self.client.create(labeler.model, messages, labeler.request, retries=retries, logprobs=logprobs)
            used = reply.calls
        except NoLogProbabilities:
            reply, used, self._logprobs = None, 1, False
        finally:
            asked.calls += used
            self.budget.give_back(1 + retries - used)
        if reply is None:
            return self._send(messages, asked)
        if self._logprobs is None and reply.text is not None:
            self._logprobs = reply.tokens is not None
        asked.replies.append(reply)
        return reply


class _Asked:
    """What was asked about one pair, and answered."""

    def __init__(self) -> None:
        self.replies = list[Reply]()
        self.sent = self.calls = 0
        """Number of requests, without and with those that were repeated."""

    @property
    def tokens(self) -> int:
        return sum(reply.input_tokens + reply.output_tokens for reply in self.replies)

    @property
    def details(self) -> dict[str, Any]:
        return {
            "model": next((reply.model for reply in self.replies if reply.model), ""),
            "calls": self.calls,
            "tokens": self.tokens,
            "output_tokens": sum(reply.output_tokens for reply in self.replies),
            "seconds": round(sum(reply.seconds for reply in self.replies), 3),
            "texts": [truncate(reply.text or "", 1_000) for reply in self.replies],
        }
