"""Asks a server several questions at a time, within a budget."""

import math
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from vlmrm_gym._util.validation import truncate
from vlmrm_gym.rewards.endpoint.client import Client, NoLogProbabilities, ServerError
from vlmrm_gym.rewards.endpoint.messages import Message, Options, ParsedAnswer
from vlmrm_gym.rewards.endpoint.reply import Reply
from vlmrm_gym.rewards.endpoint.settings import EndpointSettings

NUM_ALTERNATIVES = 20
"""Tokens in each place whose probabilities are asked for."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class Budget:
    """Counts requests and tokens up to limits, None for none. Threads share it; reserved calls count as spent."""

    def __init__(self, calls: int | None, tokens: int | None) -> None:
        self._max_calls, self._max_tokens = (math.inf if limit is None else limit for limit in (calls, tokens))
        self._lock = threading.Lock()
        self.calls = self.tokens = 0
        """Spent."""
        self._under_way = self._largest = 0
        """Number of questions, and the most tokens that one took."""

    def begin(self, calls: int, *, may_vote: bool) -> "Question | None":
        """Begin a question of so many calls; None if they, or the tokens of the largest question, are too many."""
        with self._lock:
            tokens = self.tokens + max(1, (self._under_way + 1) * self._largest)
            if self.calls + calls > self._max_calls or tokens > self._max_tokens:
                return None
            self.calls += calls
            self._under_way += 1
            return Question(self, calls, may_vote)

    def add(self) -> bool:
        """Reserve a further call; False if none is left."""
        with self._lock:
            fits = self.calls < self._max_calls
            self.calls += fits
            return fits

    def end(self, unused: int, tokens: int) -> None:
        """End a question: count its tokens, and give back the reserved calls that it did not use."""
        with self._lock:
            self.calls -= unused
            self.tokens += tokens
            self._under_way -= 1
            self._largest = max(self._largest, tokens)


@dataclass(eq=False)
class Question:
    """Holds the requests that a budget has reserved for one question, and the replies to it."""

    _budget: Budget
    reserved: int
    """Requests that are reserved and not sent."""
    may_vote: bool
    """Whether those of votes were among them."""
    replies: list[Reply] = field(default_factory=list)
    calls: int = 0
    """Number of requests, repeated ones included."""

    def reserve(self) -> bool:
        """Reserve a further request; False if none is left."""
        fits = self._budget.add()
        self.reserved += fits
        return fits

    def end(self) -> None:
        """Give back what is reserved, and count the tokens."""
        unused, self.reserved = self.reserved, 0
        self._budget.end(unused, self.tokens)

    @property
    def tokens(self) -> int:
        """Tokens of all replies, in and out."""
        return sum((reply.input_tokens or 0) + (reply.output_tokens or 0) for reply in self.replies)

    @property
    def details(self) -> dict[str, Any]:
        """Figures and texts that are stored beside an answer, as JSON can hold them."""
        return {
            "model": next((reply.model for reply in self.replies if reply.model), ""),
            "calls": self.calls,
            "tokens": self.tokens,
            "output_tokens": sum(reply.output_tokens or 0 for reply in self.replies),
            "seconds": round(sum(reply.seconds for reply in self.replies), 3),
            "texts": [truncate(reply.text or "", 1_000) for reply in self.replies],
        }


class Questioner:
    """Asks one server, and remembers whether it gives log probabilities (wanted with `logprobs`).

    A missing key is a ValueError, a missing package `DependencyNotInstalled`. `close` ends the connection.
    """

    def __init__(self, settings: EndpointSettings, budget: Budget | None = None, *, logprobs: bool = True) -> None:
        self._settings = settings
        self._alternatives = NUM_ALTERNATIVES if logprobs else 0
        self._has_logprobs: bool | None = None if logprobs else False
        """None: no reply has shown it yet."""
        self._has_warned = self._probed = False
        self.budget = budget or Budget(settings.max_calls, settings.max_total_tokens)
        self._client = Client(settings)
        self.close = self._client.close

    def answer(
        self, items: Iterable[Item], ask: Callable[[Item, Question], Result], *, sends: int = 0, estimates: int = 0
    ) -> Iterator[tuple[int, Result]]:
        """Answer questions until the budget is used up; yields (number of the item, answer) as answers arrive.

        `ask` is called in other threads, and calls `send` and `estimate` at most so many times, if none fails; the next
        item is made in this one, when it is due. The first question of all is asked alone: it shows whether the server
        answers, gives log probabilities, and how many tokens a question takes.

        A server that cannot be reached, or does not answer in time, is a ConnectionError; one that answers with an
        error a RuntimeError. Questions under way are waited for and yielded before.
        """
        waiting, following, running = enumerate(items), None, set[Question]()
        finished = SimpleQueue[tuple[int, Question, Any, BaseException | None]]()
        failure: BaseException | None = None

        def run(number: int, item: Item, question: Question) -> None:
            try:
                finished.put((number, question, ask(item, question), None))
            except BaseException as error:
                finished.put((number, question, None, error))

        try:
            while True:
                while failure is None and len(running) < (self._settings.concurrency if self._probed else 1):
                    try:
                        following = following or next(waiting, None)
                    except Exception as error:
                        failure = error
                    if following is None or (question := self._begin(sends, estimates)) is None:
                        break
                    running.add(question)
                    # Unlike an executor's, these threads end with the process, whatever they wait for.
                    threading.Thread(target=run, args=(*following, question), name="vlmrm-ask", daemon=True).start()
                    following = None
                if not running:
                    break
                number, question, result, error = finished.get()
                running.remove(question)
                question.end()
                self._probed = True
                if error is None:
                    yield number, result
                failure = failure or error
        finally:  # the caller may stop before the end, or fail
            for question in running:
                question.end()
        if failure is not None:
            raise failure

    def _begin(self, sends: int, estimates: int) -> Question | None:
        votes = 1 if self._has_logprobs else self._settings.votes
        calls = sends + estimates * votes + (self._has_logprobs is None)
        return self.budget.begin(calls, may_vote=not self._has_logprobs)

    def send(self, messages: Sequence[Message], question: Question) -> Reply:
        """Send a request of a question. Errors are those of `answer`."""
        settings = self._settings

        def may_repeat(failures: int) -> bool:
            repeats = failures <= settings.retries and self.budget.add()
            question.calls += repeats
            return repeats

        while True:
            alternatives = self._alternatives
            if not question.reserved and not question.reserve():
                raise ServerError(f"{settings.used_up} by requests that the server refused.")
            question.reserved -= 1
            question.calls += 1
            try:
                reply = self._client.create(messages, alternatives, may_repeat)
                break
            except NoLogProbabilities as error:
                self._ask_for_fewer(alternatives, str(error), question)
        if settings.max_total_tokens is not None and reply.input_tokens is None:
            raise ServerError(
                f"`max_total_tokens` needs a server that counts tokens. {self._client.address} gives no count that can "
                "be true. Pass `max_calls`."
            )
        if self._has_logprobs is None and reply.text is not None:
            self._has_logprobs = reply.tokens is not None
            self._alternatives = alternatives if self._has_logprobs else 0
        question.replies.append(reply)
        return reply

    def _ask_for_fewer(self, refused: int, message: str, question: Question) -> None:
        """Ask for the number of alternatives that the server names, else for none."""
        named = [int(digits) for digits in re.findall(r"(?<![\w.:/-])\d{1,2}(?![\w/-]|[.:]\d)", message)]
        fewer = max((number for number in named if 0 < number < refused), default=0)
        if fewer and not question.reserve():  # for the next refusal: votes stay reserved
            fewer = 0
        if self._alternatives == refused:  # else another thread has changed it
            self._alternatives = fewer
            self._has_logprobs = None if fewer else False

    def ask(
        self, messages: Sequence[Message], question: Question, options: Options
    ) -> tuple[ParsedAnswer | None, Reply]:
        """Send a request and parse the answer. A reply without one is asked for again, once, if the budget allows."""
        reply = self.send(messages, question)
        if (answer := options.parse(reply)) is None and question.reserve():
            answer = options.parse(reply := self.send(messages, question))
        return answer, reply

    def estimate(self, messages: Sequence[Message], question: Question, options: Options) -> float | None:
        """Estimate the expected value of the answer; None if `ask` got none.

        The mean is over the answer's tokens, or over `votes` replies if there are no log probabilities; fewer where
        the budget ends.
        """
        votes = list[float]()
        for number in range(self._settings.votes):
            if number and not question.may_vote and not question.reserve():
                break
            answer, reply = self.ask(messages, question, options)
            if answer is None:
                return None
            if (expectation := options.expect(answer, reply.tokens or ())) is not None:
                return expectation
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"{self._settings.model} at {self._client.address} gives no log probabilities of its answers: each "
                    f"is the mean of votes={self._settings.votes} replies, and takes as many requests.",
                    stacklevel=2,
                )
            votes.append(answer.value)
        return sum(votes) / len(votes)
