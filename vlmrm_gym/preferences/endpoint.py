"""Answers by a vision-language model behind an OpenAI-compatible server."""

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import numpy as np

from vlmrm_gym.preferences import endpoint_prompts as prompts
from vlmrm_gym.preferences.endpoint_client import Client, NoLogProbabilities, Reply
from vlmrm_gym.preferences.labelers import LabelerSpec, undecisive
from vlmrm_gym.preferences.pairs import Answer, Pair, Side
from vlmrm_gym.preferences.pictures import check_size, draw_trajectory, encode, montage, spread
from vlmrm_gym.terminal import say
from vlmrm_gym.validation import check_flag, check_integer, check_positive_integer, is_number, truncate

_OURS = ("model", "messages", "logprobs", "top_logprobs", "stream", "n")
"""Fields of requests that are set here."""


@dataclass(frozen=True, kw_only=True)
class EndpointLabeler(LabelerSpec):
    """Asks a vision-language model which of two images is closer to the goal (RL-VLM-F, arXiv 2402.03681).

    Every pair is asked in both orders, since models prefer one position. With p and q, the probabilities that the
    second is closer as each order has them, the preference is (p + q) / 2 and the confidence 1 - |p - q|: if the orders
    contradict each other, the preference is 0.5 and has no weight. What cannot be read as an answer is dropped: the
    pair counts as skipped.

    The key is read from the environment when the first question is asked, and is kept nowhere.

    Raises:
        TypeError: `request` is not a mapping.
        ValueError: A value is out of its range; the message names the field.
    """

    model: str
    """As the server names it."""
    base_url: str | None = undecisive(None)
    """Address of the server, such as "http://127.0.0.1:8000/v1"; None: the environment's `OPENAI_BASE_URL`, else
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
        for name in _OURS:
            if name in self.request:
                raise ValueError(f"`request` must not have {name!r}, which is set by the labeler.")
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
        executor = ThreadPoolExecutor(self.concurrency, "endpoint")
        try:
            while True:
                limit = self.concurrency if work.probed else 1
                while waiting and failure is None and len(running) < limit and (calls := work.begin()):
                    number, pair = waiting.popleft()
                    images = self._draw(pair.first), self._draw(pair.second)  # here: renderers are for one thread
                    running[executor.submit(work.ask, pair.prompt, images, calls)] = number
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number = running.pop(future)
                    if error := future.exception():
                        failure = failure or error
                    else:
                        yield number, future.result()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
        if failure is not None:
            raise failure
        if waiting:
            say(f"The budget of {self.model} is used up: {len(waiting)} of {len(pairs)} pairs were not asked.")

    def resume_spending(self, calls: int, tokens: int) -> None:
        """Count what was spent before, by this process or another."""
        if self.call_budget is not None or self.token_budget is not None:
            self._work.resume(calls, tokens)

    def close(self) -> None:
        """End the connection."""
        client = vars(vars(self).pop("_work", self)).pop("client", None)
        if client is not None:
            client.close()

    def _draw(self, side: Side) -> np.ndarray:
        if self.trajectory:
            return montage(draw_trajectory(side.draw(side.states, size=self.size, views=self.views))[None])
        wanted = np.zeros(len(side), bool)
        wanted[spread(len(side), self.num_frames)] = True
        return montage(side.draw(side.states[wanted], size=self.size, views=self.views))

    @cached_property
    def _work(self) -> "_Work":
        return _Work(self)


class _Work:
    """What an `EndpointLabeler` does and has spent so far in this process."""

    def __init__(self, labeler: EndpointLabeler) -> None:
        self._labeler = labeler
        self.probed = False
        self._logprobs: bool | None = None if labeler.stages == 1 else False
        """Whether the server gives log probabilities; None: it has not been asked yet."""
        self._lock = threading.Lock()
        self._calls = self._tokens = 0
        """What was spent."""
        self._reserved_calls = self._under_way = 0
        """What pairs that are under way may need, and their number."""
        self._largest = 0
        """The most tokens that a pair took."""

    @cached_property
    def client(self) -> Client:
        return Client(self._labeler.base_url, self._labeler.key_variable, self._labeler.timeout)

    def resume(self, calls: int, tokens: int) -> None:
        with self._lock:
            self._calls, self._tokens = max(self._calls, calls), max(self._tokens, tokens)

    def begin(self) -> int:
        """Reserve the calls of a pair: how many; 0 if the budget might not suffice for it."""
        self.client  # noqa: B018  (raises here if there is no key)
        labeler, calls = self._labeler, 4
        if labeler.stages == 1:
            calls = 2 if self._logprobs else 2 * labeler.votes + (self._logprobs is None)
        with self._lock:
            fits = self._free_calls() >= calls
            if labeler.token_budget is not None:
                fits &= self._tokens + max(1, (self._under_way + 1) * self._largest) <= labeler.token_budget
            if fits:
                self._under_way += 1
                self._reserved_calls += calls
            return calls if fits else 0

    def _free_calls(self) -> float:
        budget = self._labeler.call_budget
        return np.inf if budget is None else budget - self._calls - self._reserved_calls

    def ask(self, prompt: str, images: Sequence[np.ndarray], reserved: int) -> Answer:
        """Ask about a pair, in both orders."""
        files, asked, orders = [encode(image) for image in images], _Asked(reserved), list[float]()
        try:
            for order in (files, files[::-1]):
                prefers_second = self._ask_in_order(prompt, order, asked)
                if prefers_second is None:
                    return Answer(preference=None, details={**asked.details, "dropped": "not an answer"})
                orders.append(prefers_second if order is files else 1 - prefers_second)
            details = {**asked.details, "orders": orders}
            return Answer(preference=sum(orders) / 2, confidence=1 - abs(orders[0] - orders[1]), details=details)
        finally:
            with self._lock:
                self._under_way -= 1
                self._reserved_calls -= asked.reserved
                self._tokens += asked.tokens
                self._largest = max(self._largest, asked.tokens)
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
                break  # of the same answer there is no need for another vote
        return sum(votes) / len(votes) if votes else None

    def _send(self, messages: Sequence[prompts.Message], asked: "_Asked") -> Reply:
        labeler, logprobs = self._labeler, self._logprobs is not False
        with self._lock:
            retries = int(min(labeler.retries, max(0, self._free_calls())))
            self._reserved_calls += retries
            asked.reserved += retries
        used, reply = retries + 1, None
        try:
            reply = self.client.create(labeler.model, messages, labeler.request, retries=retries, logprobs=logprobs)
            used = reply.calls
        except NoLogProbabilities:
            self._logprobs, used = False, 1
        finally:
            asked.calls += used
            with self._lock:
                self._calls += used
                self._reserved_calls -= retries + 1
                asked.reserved -= retries + 1
        if reply is None:
            return self._send(messages, asked)
        if self._logprobs is None and reply.text is not None:
            self._logprobs = reply.tokens is not None
        asked.replies.append(reply)
        return reply


class _Asked:
    """What was asked about one pair, and answered."""

    def __init__(self, reserved: int) -> None:
        self.reserved, self.calls, self.replies = reserved, 0, list[Reply]()

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
