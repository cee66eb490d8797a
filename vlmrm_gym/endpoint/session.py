"""Questions to a server, several at a time, within a budget."""

import math
import re
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from vlmrm_gym._util.threads import start
from vlmrm_gym._util.validation import truncate
from vlmrm_gym.endpoint.client import Client, NoLogProbabilities, ServerError
from vlmrm_gym.endpoint.messages import Message
from vlmrm_gym.endpoint.options import Options
from vlmrm_gym.endpoint.reply import Reply
from vlmrm_gym.endpoint.settings import EndpointSettings

NUM_ALTERNATIVES, FEWER = 20, (5, 2, 1)
"""Tokens in each place whose probabilities are asked for; if they are refused, and no number is named, fewer."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class Budget:
    """The most requests and tokens, None for any number. Threads share it; calls that are set aside count as spent."""

    def __init__(self, calls: int | None, tokens: int | None) -> None:
        self._max_calls, self._max_tokens = (math.inf if limit is None else limit for limit in (calls, tokens))
        self._lock = threading.Lock()
        self.calls = self.tokens = 0
        """Spent."""
        self._under_way = self._largest = 0
        """Number of questions, and the most tokens that one took."""

    def begin(self, calls: int) -> bool:
        """Set aside the calls of a question; False if they, or as many tokens as the largest took, are too many."""
        with self._lock:
            tokens = self.tokens + max(1, (self._under_way + 1) * self._largest)
            fits = self.calls + calls <= self._max_calls and tokens <= self._max_tokens
            if fits:
                self.calls += calls
                self._under_way += 1
            return fits

    def add(self) -> bool:
        """Set aside a further call; False if there is none."""
        with self._lock:
            fits = self.calls < self._max_calls
            self.calls += fits
            return fits

    def end(self, unused: int, tokens: int) -> None:
        """End a question that took some tokens, and did not use some of the calls set aside."""
        with self._lock:
            self.calls -= unused
            self.tokens += tokens
            self._under_way -= 1
            self._largest = max(self._largest, tokens)


class Asked:
    """What was asked to answer one question, for which requests are set aside, and what was replied."""

    def __init__(self, reserved: int, *, may_vote: bool) -> None:
        self.reserved, self.may_vote = reserved, may_vote
        """Requests that are still set aside, and whether those of votes are among them."""
        self.replies = list[Reply]()
        self.calls = 0
        """Number of requests, with those that were repeated."""

    @property
    def tokens(self) -> int:
        """Of all replies, in and out."""
        return sum((reply.input_tokens or 0) + (reply.output_tokens or 0) for reply in self.replies)

    @property
    def details(self) -> dict[str, Any]:
        """What is kept beside an answer, as JSON can hold it."""
        return {
            "model": next((reply.model for reply in self.replies if reply.model), ""),
            "calls": self.calls,
            "tokens": self.tokens,
            "output_tokens": sum(reply.output_tokens or 0 for reply in self.replies),
            "seconds": round(sum(reply.seconds for reply in self.replies), 3),
            "texts": [truncate(reply.text or "", 1_000) for reply in self.replies],
        }


class Session:
    """A connection to a server, and what has been found out about it.

    With `logprobs`, log probabilities are wanted: the first reply shows whether there are any. A missing key is a
    ValueError, a missing package `DependencyNotInstalled`. `close` ends the connection.
    """

    def __init__(self, settings: EndpointSettings, budget: Budget | None = None, *, logprobs: bool = True) -> None:
        self._settings = settings
        self._alternatives = NUM_ALTERNATIVES if logprobs else 0
        self._has_logprobs: bool | None = None if logprobs else False
        """None: no reply has shown it yet."""
        self._votes_are_said = self._probed = False
        self._lock = threading.Lock()
        self.budget = budget or Budget(settings.call_budget, settings.token_budget)
        self._client = Client(settings.address, settings.key_variable, settings.timeout)
        self.close = self._client.close

    def calls(self, estimates: int) -> int:
        """The most requests that a question of so many estimates takes, if none fails."""
        votes = 1 if self._has_logprobs else self._settings.votes
        return estimates * votes + (self._has_logprobs is None)

    def answer(
        self, items: Sequence[Item], calls: Callable[[], int], prepare: Callable[[Item], Callable[[Asked], Result]]
    ) -> Iterator[tuple[int, Result]]:
        """Answer questions, several at a time, until the budget is used up: (number of the item, answer), as they come.

        `calls` says the most requests that the next question takes, if none fails. `prepare` makes of an item the
        function that asks, which is called in another thread. The first question of all is asked alone: it shows
        whether the server answers, gives log probabilities, and how many tokens a question takes.

        A server that cannot be reached, or does not answer in time, is a ConnectionError; one that answers with an
        error a RuntimeError. What is under way is waited for and yielded before.
        """
        waiting, running = deque(enumerate(items)), dict[Future[Result], tuple[int, Asked]]()
        failure: BaseException | None = None
        try:
            while True:
                limit = self._settings.concurrency if self._probed else 1
                while waiting and failure is None and len(running) < limit:
                    if not self.budget.begin(reserved := calls()):
                        break
                    (number, item), asked = waiting.popleft(), Asked(reserved, may_vote=not self._has_logprobs)
                    try:
                        running[start(self._ask, prepare(item), asked)] = number, asked
                    except Exception as error:
                        self._end(asked)
                        failure = error
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number, asked = running.pop(future)
                    self._end(asked)
                    if error := future.exception():
                        failure = failure or error
                    else:
                        yield number, future.result()
        finally:  # the caller may stop before the end, or fail
            for _, asked in running.values():
                self._end(asked)
        if failure is not None:
            raise failure

    def _ask(self, question: Callable[[Asked], Result], asked: Asked) -> Result:
        try:
            return question(asked)
        finally:
            self._probed = True

    def _end(self, asked: Asked) -> None:
        unused, asked.reserved = asked.reserved, 0
        self.budget.end(unused, asked.tokens)

    def _reserve(self, asked: Asked) -> bool:
        """Set a further call aside for a question; False if there is none."""
        fits = self.budget.add()
        asked.reserved += fits
        return fits

    def send(self, messages: Sequence[Message], asked: Asked) -> Reply:
        """Send a request, inside of a question. Errors are those of `answer`."""
        settings = self._settings

        def may_repeat(failures: int) -> bool:
            repeats = failures <= settings.retries and self.budget.add()
            asked.calls += repeats
            return repeats

        while True:
            alternatives = self._alternatives
            if not asked.reserved and not self._reserve(asked):
                raise ServerError(f"{settings.used_up} by requests that the server refused.")
            asked.reserved -= 1
            asked.calls += 1
            try:
                reply = self._client.create(settings.model, messages, settings.request, alternatives, may_repeat)
                break
            except NoLogProbabilities as error:
                self._ask_for_fewer(alternatives, str(error), asked)
        if settings.token_budget is not None and reply.input_tokens is None:
            raise ServerError(
                f"`token_budget` needs a server that counts tokens. {self._client.address} says no number of them that "
                "can be true. Pass `call_budget`."
            )
        if self._has_logprobs is None and reply.text is not None:
            self._has_logprobs = reply.tokens is not None
            self._alternatives = alternatives if self._has_logprobs else 0
        asked.replies.append(reply)
        return reply

    def _ask_for_fewer(self, refused: int, said: str, asked: Asked) -> None:
        """Take the number of alternatives that the server names, else fewer; none if it gives no log probabilities."""
        named = [int(found) for found in re.findall(r"(?<![\w.:/-])\d{1,2}(?![\w/-]|[.:]\d)", said)]
        lower = [number for number in named if 0 < number < refused]
        if not lower and "top_logprobs" in said:
            lower = [number for number in FEWER if number < refused]
        fewer = max(lower, default=0)
        if fewer and not self._reserve(asked):  # for the next refusal: votes stay set aside
            fewer = 0
        with self._lock:
            if self._alternatives == refused:
                self._alternatives = fewer
                self._has_logprobs = None if fewer else False

    def estimate(self, messages: Sequence[Message], asked: Asked, options: Options) -> float | None:
        """The expectation of an answer to a question; None if nothing was an answer.

        Over its tokens, or over `votes` replies if there are no log probabilities; fewer where the budget ends.
        """
        votes = list[float]()
        for number in range(self._settings.votes):
            if number and not asked.may_vote and not self._reserve(asked):
                break
            reply = self.send(messages, asked)
            found = options.parse(reply)
            if found is None and self._has_logprobs:
                break  # another reply would be the same
            if found is not None and (expectation := options.expect(found, reply.tokens or ())) is not None:
                return expectation
            if found is not None:
                self._say_votes()
                votes.append(found.value)
        return sum(votes) / len(votes) if votes else None

    def _say_votes(self) -> None:
        """Warn, once, of answers that are votes."""
        with self._lock:
            said, self._votes_are_said = self._votes_are_said, True
        if not said:
            warnings.warn(
                f"{self._settings.model} at {self._client.address} gives no log probabilities of its answers: each is "
                f"the mean of votes={self._settings.votes} replies, and takes as many requests.",
                stacklevel=2,
            )
