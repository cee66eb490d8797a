"""Questions to a server, several at a time, within a budget."""

import re
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from vlmrm_gym.endpoint.budget import Budget
from vlmrm_gym.endpoint.client import Client, NoLogProbabilities, ServerError
from vlmrm_gym.endpoint.messages import Message
from vlmrm_gym.endpoint.options import Options
from vlmrm_gym.endpoint.reply import Reply
from vlmrm_gym.endpoint.settings import EndpointSettings
from vlmrm_gym.threads import start
from vlmrm_gym.validation import truncate

NUM_ALTERNATIVES, FEWER = 20, (5, 2, 1)
"""Tokens in each place whose probabilities are asked for; if they are refused, and no number is named, fewer."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class Asked:
    """What was asked to answer one question, and what was replied.

    Args:
        reserved: Requests that are set aside for it.
        may_vote: Whether those of votes are among them.
    """

    def __init__(self, reserved: int, *, may_vote: bool) -> None:
        self.reserved, self.may_vote = reserved, may_vote
        self.replies = list[Reply]()
        self.sent = self.calls = 0
        """Number of requests, without and with those that were repeated."""

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

    Args:
        settings: The server, and what may be asked of it.
        logprobs: Whether log probabilities are wanted: the first reply shows whether there are any.

    Attributes:
        share: See `Budget.share`.
        close: Ends the connection.

    Raises:
        DependencyNotInstalled: The package `httpcore2` is missing.
        ValueError: There is no key.
    """

    def __init__(self, settings: EndpointSettings, *, logprobs: bool = True) -> None:
        self._settings = settings
        self._alternatives = NUM_ALTERNATIVES if logprobs else 0
        self._has_logprobs: bool | None = None if logprobs else False
        """None: no reply has shown it yet."""
        self._votes_are_said = self._probed = False
        self._lock = threading.Lock()
        self._budget = Budget(settings.call_budget, settings.token_budget)
        self.share = self._budget.share
        self._client = Client(settings.address, settings.key_variable, settings.timeout)
        self.close = self._client.close

    def calls(self, estimates: int) -> int:
        """The most requests that a question of so many estimates takes, if none fails."""
        votes = 1 if self._has_logprobs else self._settings.votes
        return estimates * votes + (self._has_logprobs is None)

    def answer(
        self,
        items: Sequence[Item],
        calls: Callable[[], int],
        prepare: Callable[[Item], Callable[[Asked], Result]],
    ) -> Iterator[tuple[int, Result]]:
        """Answer questions, several at a time, until the budget is used up: (number of the item, answer), as they come.

        The first question of all is asked alone: it shows whether the server answers, gives log probabilities, and how
        many tokens a question takes.

        Args:
            items: What the questions are about.
            calls: The most requests that the next question takes, if none fails.
            prepare: Makes the function that asks, which is called in another thread.

        Raises:
            ConnectionError: The server cannot be reached, or does not answer in time.
            RuntimeError: The server answers with an error. What is under way is waited for and yielded before.
            Exception: Raised by `prepare`, likewise.
        """
        waiting, running = deque(enumerate(items)), dict[Future[Result], tuple[int, Asked]]()
        failure: BaseException | None = None
        try:
            while True:
                limit = self._settings.concurrency if self._probed else 1
                while waiting and failure is None and len(running) < limit:
                    if not self._budget.begin(reserved := calls()):
                        break
                    (number, item), asked = waiting.popleft(), Asked(reserved, may_vote=not self._has_logprobs)
                    try:
                        running[start(self._ask, prepare(item), asked)] = number, asked
                    except Exception as error:
                        self._settle(asked)
                        failure = error
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number, asked = running.pop(future)
                    self._settle(asked)
                    if error := future.exception():
                        failure = failure or error
                    else:
                        yield number, future.result()
        finally:  # the caller may stop before the end, or fail
            for _, asked in running.values():
                self._settle(asked)
        if failure is not None:
            raise failure

    def _settle(self, asked: Asked) -> None:
        self._budget.end(asked.reserved - asked.sent, asked.calls, asked.tokens)

    def _ask(self, question: Callable[[Asked], Result], asked: Asked) -> Result:
        try:
            return question(asked)
        finally:
            self._probed = True

    def _reserve(self, asked: Asked, calls: int = 1) -> int:
        """Set further calls aside for a question, as many as there are: their number."""
        lent = self._budget.lend(calls)
        asked.reserved += lent
        return lent

    def send(self, messages: Sequence[Message], asked: Asked) -> Reply:
        """Send a request. Call this inside of a question.

        Raises:
            ConnectionError, RuntimeError: As `answer`.
        """
        settings = self._settings
        while True:
            alternatives = self._alternatives
            if asked.sent >= asked.reserved and not self._reserve(asked):
                raise ServerError(f"{settings.used_up} by requests that the server refused.", 0)
            asked.sent += 1
            retries = self._budget.lend(settings.retries)
            used = 1 + retries
            try:
                reply = self._client.create(
                    settings.model, messages, settings.request, retries=retries, alternatives=alternatives
                )
                used = reply.calls
                break
            except NoLogProbabilities as error:
                used = error.calls
                self._ask_for_fewer(alternatives, str(error), asked)
            except ServerError as error:
                used = error.calls
                raise
            finally:
                asked.calls += used
                self._budget.give_back(1 + retries - used)
        if settings.token_budget is not None and reply.input_tokens is None:
            raise ServerError(
                f"`token_budget` needs a server that counts tokens. {self._client.address} says no number of them that "
                "can be true. Pass `call_budget`.",
                0,
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
        """The expectation of an answer: over its tokens, or over `votes` replies if there are no log probabilities.

        Fewer votes are asked for where the budget ends.

        Args:
            messages: The question.
            asked: Where replies are added.
            options: The answers, and their values.

        Returns:
            The expectation; None if nothing was an answer.
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
