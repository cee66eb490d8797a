"""Requests of any size in, batches out to any number of scorers, rewards back."""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.scoring.interrupts import interrupts_later
from vlmrm_gym.scoring.scorer import IN_FLIGHT, Rewards, Scorer

PATIENCE = 2.0
"""Seconds that closing waits for the batches that are being scored."""


class Request:
    """States to be scored, (n, ...), and their rewards once they are.

    The states are let go of then. A request that failed keeps them, and can be submitted again.
    """

    def __init__(self, states: NDArray[Any]) -> None:
        self.states: NDArray[Any] | None = states
        self.nbytes = states.nbytes
        self.submitted = self.alone = False
        self.rewards: Rewards = np.empty(len(states), dtype=np.float32)
        self.begin()

    def begin(self) -> None:
        """Forget what an earlier attempt came to."""
        self.taken, self.scored = 0, 0
        self.future: Future[None] = Future()

    def done(self) -> bool:
        """Whether waiting is over, for better or worse."""
        return self.future.done()

    def error(self) -> BaseException | None:
        """Wait, then say what went wrong, if anything did."""
        return self.future.exception()


@dataclass(frozen=True)
class _Part:
    """Some states of a request, in one batch."""

    request: Request
    start: int
    states: NDArray[Any]
    attempt: Future[None]

    @property
    def is_wanted(self) -> bool:
        """Whether the request still waits for it, and has not failed by another part."""
        return self.request.future is self.attempt and not self.attempt.done()


class ScoringQueue:
    """Cuts requests into batches, whatever their sizes, and keeps scorers busy with them.

    Every scorer has a thread that feeds it. Batches are equally large, and so many that all scorers are busy to the
    end. They follow from what is submitted alone, never from who is fast: a reward's last digits depend on the batch.

    Args:
        scorers: What scores; closed with the queue.
        batch_size: The largest batch.
        max_pending_bytes: The most memory for states that wait; `submit` blocks rather than take more.
    """

    def __init__(self, scorers: Sequence[Scorer], *, batch_size: int, max_pending_bytes: int) -> None:
        self._scorers, self.batch_size, self.max_pending_bytes = list(scorers), batch_size, max_pending_bytes
        self._waiting: deque[Request] = deque()
        """Requests with states that no scorer has taken yet."""
        self._untaken = self._pending_bytes = 0
        self._size = batch_size
        """Of the next batches."""
        self._idle = len(self._scorers)
        self._closed, self._process = False, os.getpid()
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._feed, args=(scorer,), name=f"vlmrm-score-{number}", daemon=True)
            for number, scorer in enumerate(self._scorers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pending_bytes(self) -> int:
        """Memory of the states that wait or are being scored, in bytes."""
        return self._pending_bytes

    def submit(self, request: Request) -> None:
        """Have a request scored, from its beginning, unless it is being scored. Blocks while too many states wait.

        Raises:
            RuntimeError: The queue is closed, or this process is a fork.
        """
        if os.getpid() != self._process:
            raise RuntimeError("This process was forked from the one that scores, and cannot. Make environments in it.")
        if request.submitted and not request.done():
            return
        assert request.states is not None, "it has been scored"
        limit = max(0, self.max_pending_bytes - request.nbytes)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._pending_bytes <= limit)
            if self._closed:
                raise _ended()
            with interrupts_later():
                request.begin()
                request.submitted = True
                self._waiting.append(request)
                self._untaken += len(request.rewards)
                self._pending_bytes += request.nbytes
                rounds = math.ceil(self._untaken / (self.batch_size * len(self._scorers)))
                self._size = math.ceil(self._untaken / (rounds * len(self._scorers)))
                self._changed.notify_all()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is submitted here is cut into batches as one, unless memory runs out."""
        with self._changed:
            yield

    def close(self) -> None:
        """Stop; requests that have not been scored fail with a RuntimeError."""
        if os.getpid() != self._process:
            return  # a fork: scorers and threads are its parent's
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        for scorer in self._scorers:
            scorer.abort()
        # What a scorer in this process is at cannot be stopped; its thread lets go of everything when it is done.
        until = time.monotonic() + PATIENCE
        for thread in self._threads:
            if thread is not threading.current_thread():  # which garbage may be collected in
                thread.join(max(0.0, until - time.monotonic()))
        with self._changed:
            for request in list(self._waiting):
                self._fail(request, _ended())

    def _feed(self, scorer: Scorer) -> None:
        """Send batches to a scorer and deliver its rewards, until the queue is closed."""
        unanswered: deque[list[_Part]] = deque()
        while not self._closed:
            if parts := self._take(len(unanswered)):
                try:
                    states = parts[0].states if len(parts) == 1 else np.concatenate([part.states for part in parts])
                except ValueError as error:  # of differing shapes
                    self._answer(parts, None, error, idle=not unanswered)
                    continue
                unanswered.append(parts)
                scorer.send(states)
            elif unanswered:
                self._receive(scorer, unanswered.popleft(), idle=not unanswered)
        with self._changed:
            for part in (part for parts in unanswered for part in parts):
                if part.is_wanted:
                    self._fail(part.request, _ended())
        scorer.close()

    def _take(self, unanswered: int) -> list[_Part]:
        """The next batch for a scorer, or nothing, if there is none or the scorer has enough to do."""
        with self._changed:
            if not unanswered:
                self._changed.wait_for(lambda: self._closed or self._untaken)
            elif unanswered == IN_FLIGHT or self._idle:
                return []
            if self._closed or not self._untaken:
                return []
            room = min(self._untaken, self._size)
            if not unanswered:
                self._idle -= 1
            self._untaken -= room
            parts = []
            while room:
                request = self._waiting[0]
                if parts and (request.alone or parts[-1].request.alone):
                    self._untaken += room
                    break
                assert request.states is not None
                part = _Part(request, request.taken, request.states[request.taken :][:room], request.future)
                parts.append(part)
                request.taken += len(part.states)
                room -= len(part.states)
                if request.taken == len(request.states):
                    self._waiting.popleft()
            return parts

    def _receive(self, scorer: Scorer, parts: list[_Part], *, idle: bool) -> None:
        """Wait for a batch, and deliver its rewards or what went wrong."""
        count = sum(len(part.states) for part in parts)
        try:
            rewards, error = scorer.receive(), None
            if rewards.shape != (count,):
                raise RuntimeError(f"A reward model gave rewards of shape {rewards.shape} for {count} frames.")
        except BaseException as raised:  # a model's sys.exit() too: somebody waits for an answer
            if not isinstance(raised, Exception):
                raised = RuntimeError(f"A reward model raised {raised!r}.")
            rewards, error = None, _ended() if self._closed else raised
        self._answer(parts, rewards, error, idle=idle)

    def _answer(self, parts: list[_Part], rewards: Rewards | None, error: BaseException | None, *, idle: bool) -> None:
        with self._changed:
            start = 0
            for part in parts:
                stop = start + len(part.states)
                if part.is_wanted:
                    if rewards is None:
                        self._fail(part.request, error)
                    else:
                        self._deliver(part, rewards[start:stop])
                start = stop
            self._idle += idle
            self._changed.notify_all()

    def _deliver(self, part: _Part, rewards: Rewards) -> None:
        request = part.request
        request.rewards[part.start :][: len(rewards)] = rewards
        request.scored += len(rewards)
        if request.scored == len(request.rewards):
            request.states = None
            self._pending_bytes -= request.nbytes
            request.future.set_result(None)

    def _fail(self, request: Request, error: BaseException | None) -> None:
        """Tell a request what went wrong, and drop what no scorer has taken of it."""
        if request in self._waiting:
            self._waiting.remove(request)
            self._untaken -= len(request.rewards) - request.taken
        self._pending_bytes -= request.nbytes
        request.alone = True  # the next time, so that it fails no other
        request.future.set_exception(error)


def _ended() -> RuntimeError:
    return RuntimeError("Scoring has ended: the environment was closed before these states were scored.")
