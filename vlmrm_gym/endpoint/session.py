"""Questions to a server, several at a time, within a budget."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from vlmrm_gym.endpoint.budget import Budget
from vlmrm_gym.endpoint.client import Client, NoLogProbabilities, Reply, ServerError
from vlmrm_gym.endpoint.messages import Message, expect
from vlmrm_gym.endpoint.settings import EndpointSettings
from vlmrm_gym.threads import start
from vlmrm_gym.validation import truncate

Item = TypeVar("Item")
Result = TypeVar("Result")


class Asked:
    """What was asked to answer one question, and what was replied."""

    def __init__(self) -> None:
        self.replies = list[Reply]()
        self.sent = self.calls = 0
        """Number of requests, without and with those that were repeated."""

    @property
    def tokens(self) -> int:
        """Of all replies, in and out."""
        return sum(reply.input_tokens + reply.output_tokens for reply in self.replies)

    @property
    def details(self) -> dict[str, Any]:
        """What is kept beside an answer, as JSON can hold it."""
        return {
            "model": next((reply.model for reply in self.replies if reply.model), ""),
            "calls": self.calls,
            "tokens": self.tokens,
            "output_tokens": sum(reply.output_tokens for reply in self.replies),
            "seconds": round(sum(reply.seconds for reply in self.replies), 3),
            "texts": [truncate(reply.text or "", 1_000) for reply in self.replies],
        }


class Session:
    """A connection to a server, and what has been found out about it.

    Args:
        settings: The server, and what may be asked of it.
        logprobs: Whether it gives log probabilities; False: they are not wanted; None: the first request tells.

    Attributes:
        share: See `Budget.share`.

    Raises:
        DependencyNotInstalled: The package `openai` is missing.
        ValueError: There is no key.
    """

    def __init__(self, settings: EndpointSettings, logprobs: bool | None = None) -> None:
        self._settings, self._logprobs = settings, logprobs
        self._budget = Budget(settings.call_budget, settings.token_budget)
        self.share = self._budget.share
        self._client = Client(settings.base_url, settings.key_variable, settings.timeout)
        self._probed = False
        """Whether a question has been asked."""

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def calls(self, estimates: int) -> int:
        """The most requests that a question of so many estimates takes, if none fails."""
        return estimates if self._logprobs else estimates * self._settings.votes + (self._logprobs is None)

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
        waiting, running = deque(enumerate(items)), dict[Future[Result], tuple[int, int, Asked]]()
        failure: BaseException | None = None
        try:
            while True:
                limit = self._settings.concurrency if self._probed else 1
                while waiting and failure is None and len(running) < limit:
                    if not self._budget.begin(needed := calls()):
                        break
                    (number, item), asked = waiting.popleft(), Asked()
                    try:
                        running[start(self._ask, prepare(item), asked)] = number, needed, asked
                    except Exception as error:
                        self._budget.end(needed, 0, 0)
                        failure = error
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number, needed, asked = running.pop(future)
                    self._settle(needed, asked)
                    if error := future.exception():
                        failure = failure or error
                    else:
                        yield number, future.result()
        finally:  # the caller may stop before the end, or fail
            for _, needed, asked in running.values():
                self._settle(needed, asked)
        if failure is not None:
            raise failure

    def _settle(self, needed: int, asked: Asked) -> None:
        self._budget.end(needed - asked.sent, asked.calls, asked.tokens)

    def _ask(self, question: Callable[[Asked], Result], asked: Asked) -> Result:
        try:
            return question(asked)
        finally:
            self._probed = True

    def send(self, messages: Sequence[Message], asked: Asked) -> Reply:
        """Send a request. Call this inside of a question.

        Raises:
            ConnectionError, RuntimeError: As `answer`.
        """
        settings, logprobs = self._settings, self._logprobs is not False
        retries = self._budget.lend(settings.retries)
        used = 1 + retries
        asked.sent += 1
        try:
            reply = self._client.create(settings.model, messages, settings.request, retries=retries, logprobs=logprobs)
            used = reply.calls
        except NoLogProbabilities as error:
            reply, used, self._logprobs = None, error.calls, False
        except ServerError as error:
            used = error.calls
            raise
        finally:
            asked.calls += used
            self._budget.give_back(1 + retries - used)
        if reply is None:
            return self.send(messages, asked)
        if self._logprobs is None and reply.text is not None:
            self._logprobs = reply.tokens is not None
        asked.replies.append(reply)
        return reply

    def estimate(
        self,
        messages: Sequence[Message],
        asked: Asked,
        parse: Callable[[Reply], float | None],
        read: Callable[[str], float | None],
    ) -> float | None:
        """The expectation of an answer: over its tokens, or over `votes` replies if there are no log probabilities.

        Args:
            messages: The question.
            asked: Where replies are added.
            parse: Reads the answer of a reply; None if there is none.
            read: Reads the answer of a token likewise.

        Returns:
            The expectation; None if nothing was an answer.
        """
        votes = list[float]()
        for _ in range(self._settings.votes):
            reply = self.send(messages, asked)
            vote = parse(reply)
            if vote is not None and reply.tokens:
                return expect(vote, reply.tokens, read)
            if vote is not None:
                votes.append(vote)
            if self._logprobs:
                break  # another reply would be the same
        return sum(votes) / len(votes) if votes else None
