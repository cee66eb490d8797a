"""Batches requests of any size for any number of scorers, and returns the features of their states."""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rewards.combined_model import Expression
from vlmrm_gym.rewards.model import Features
from vlmrm_gym.scoring.requests import Part, Request, StateBatch
from vlmrm_gym.scoring.scorer import Scorer, StartedScorers, WorkerDied
from vlmrm_gym.states import States
from vlmrm_gym.states.drawing import Drawings

CLOSE_TIMEOUT = 2.0
"""Seconds that `close` waits for batches in progress."""
MAX_CRASHES = 3
"""Deaths of workers over the same batch that are an error."""


class ScoringQueue:
    """Splits requests of any size into batches and distributes them over scorers.

    Each scorer has a thread that feeds it. Batches are of equal size, chosen to keep all scorers busy to the end. They
    depend only on what is submitted, not on the scorers' speed, because a feature's last digits depend on its batch.

    A batch that a worker had when it died goes to any worker, but alone: the next death over it is its own.

    The scorers are closed with the queue. `submit` blocks while pending states take `max_pending_bytes`.
    """

    def __init__(self, started: StartedScorers, head: Expression | None, *, max_pending_bytes: int) -> None:
        self.info, self.head, self.batch_size = started.info, head, started.info.batch_size
        self._scorers, self.max_pending_bytes = list(started.scorers), max_pending_bytes
        self._renderer, self._drawings = started.renderer, Drawings(started.renderer)
        self._drawing = threading.RLock()
        self._shape: tuple[int, ...] = ()
        """Shape of a state's features, (V, D), once the first ones have arrived."""
        self._requests: dict[Request, None] = {}
        """Those in progress, oldest first. An exception of a signal's handler in `submit` leaves each in or out."""
        self._returned: deque[StateBatch] = deque()
        """Batches of workers that died; dispatched first, unchanged."""
        self._size = self.batch_size
        """Size of the next batches."""
        self._num_idle = 0
        """Scorers without a batch."""
        self._closed, self._process = False, os.getpid()
        self._lock = threading.RLock()  # reentrant: garbage collection may close the queue anywhere
        self._changed = threading.Condition(self._lock)
        self._threads = [
            threading.Thread(target=self._feed, args=(scorer,), name=f"vlmrm-score-{number}", daemon=True)
            for number, scorer in enumerate(self._scorers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pending_bytes(self) -> int:
        """Bytes of all states that are not scored yet."""
        return sum(request.nbytes for request in tuple(self._requests))

    def features(self, states: States) -> Features:
        """Encode B states, of an episode from its beginning if the model is ordered, and wait: float32 (B, V, D)."""
        return self.encode(Request(states, np.arange(len(states)), {0: None} if self.info.ordered else None))

    def encode(self, request: Request) -> Features:
        """Encode the states of a request, and wait: float32 (B, V, D)."""
        self.submit(request)
        if error := request.error():
            raise error
        return request.features

    def frames(self, states: States, size: tuple[int, int] | None = None, views: Any = None) -> NDArray[np.uint8]:
        """Draw B states in this process: uint8 (B, V, height, width, 3).

        `size` is (height, width) in pixels, None: as the model sees them. `views` are cameras, as `camera` of
        `VLMReward`, for MuJoCo environments only; None: those of the reward.
        """
        with self._drawing:
            if self._closed:
                raise _closed_error()
            return self._drawings.draw(states.newest, size, views)

    def submit(self, *requests: Request) -> None:
        """Score requests, batched together. Requests in progress or scored are skipped. Blocks while memory is full."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "This process was forked from the one that scores, and threads do not survive a fork. Make the "
                'environments in this process, or start it by "spawn" instead of "fork".'
            )
        while requests:
            with self._lock:
                if self._closed:
                    raise _closed_error()
                requests = self._accept(requests)
                oldest = next(iter(self._requests), None)
            if requests and oldest is not None:
                oldest.error()

    def _accept(self, requests: tuple[Request, ...]) -> tuple[Request, ...]:
        """Accept requests in order; returns those that do not fit in memory yet."""
        accepted, pending = 0, self.pending_bytes
        for request in requests:
            if request.states is not None and request not in self._requests:
                if pending > max(0, self.max_pending_bytes - request.nbytes):
                    break
                request.begin()
                if not len(request):
                    request.end()
                else:
                    self._requests[request] = None
                    pending += request.nbytes
            accepted += 1
        if num_waiting := self._num_waiting():
            rounds = math.ceil(num_waiting / (self.batch_size * len(self._scorers)))
            self._size = math.ceil(num_waiting / (rounds * len(self._scorers)))
            self._changed.notify_all()
        return requests[accepted:]

    def _num_waiting(self) -> int:
        """Number of states that can go into a batch now."""
        return sum(request.num_waiting for request in tuple(self._requests))

    def close(self) -> None:
        """Stop scoring; unfinished requests fail with a RuntimeError. May be called again, such as after Ctrl-C."""
        if os.getpid() != self._process:
            return  # in a fork, scorers and threads belong to the parent
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        for scorer in self._scorers:
            scorer.abort()
        with self._drawing:
            self._drawings.close()
            self._renderer.close()
        # A scorer in this process cannot be interrupted; its thread frees everything when it finishes.
        until = time.monotonic() + CLOSE_TIMEOUT
        for thread in self._threads:
            if thread is not threading.current_thread():  # garbage collection on that thread may have called this
                thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            for request in tuple(self._requests):
                self._end(request, _closed_error())

    def _feed(self, scorer: Scorer) -> None:
        """Send batches to a scorer and deliver their features, until the queue is closed."""
        while not self._closed and scorer.wait_until_available():
            unanswered: deque[StateBatch] = deque()
            try:
                self._feed_while_alive(scorer, unanswered)
            except WorkerDied as died:
                self._return(unanswered, died)
        scorer.close()

    def _feed_while_alive(self, scorer: Scorer, unanswered: deque[StateBatch]) -> None:
        with self._lock:
            self._num_idle += 1
        while not self._closed:
            if (batch := self._next_batch(unanswered, scorer.max_in_flight)) is not None:
                unanswered.append(batch)
                scorer.send(batch)
            elif unanswered:
                answer = self._receive(scorer, len(unanswered[0]))
                batch = unanswered.popleft()
                self._answer(batch, answer, idle=not unanswered)

    def _next_batch(self, unanswered: Sequence[StateBatch], max_in_flight: int) -> StateBatch | None:
        """The next batch for a scorer; None if there is none, or the scorer has enough to do."""
        with self._lock:
            if not unanswered:
                self._changed.wait_for(lambda: self._closed or self._returned or self._num_waiting())
            elif self._returned or unanswered[0].num_crashes or self._num_idle:
                return None  # it takes what was returned once it has answered: that goes alone
            elif len(unanswered) >= min(max_in_flight, self._fair_share()):
                return None
            if self._closed or not (self._returned or self._num_waiting()):
                return None
            if not unanswered:
                self._num_idle -= 1
            return self._returned.popleft() if self._returned else self._cut_batch()

    def _fair_share(self) -> int:
        """Batches that one scorer may take: the waiting batches divided by the scorers, at least 2."""
        return max(2, math.ceil(math.ceil(self._num_waiting() / self._size) / len(self._scorers)))

    def _cut_batch(self) -> StateBatch:
        room, parts = self._size, list[Part]()
        for request in [one for one in self._requests if one.num_waiting]:
            before = parts[-1].request if parts else request
            if before is not request and (request.isolate or before.isolate or request.kind != before.kind):
                break
            parts.append(request.cut(room))
            room -= len(parts[-1])
            if not room:
                break
        return StateBatch.of(parts)

    def _receive(self, scorer: Scorer, count: int) -> Features | Exception:
        try:
            features = scorer.receive()
        except WorkerDied:
            raise
        except BaseException as raised:  # including SystemExit from a model, because the caller is waiting
            if self._closed:
                return _closed_error()
            return raised if isinstance(raised, Exception) else RuntimeError(f"A reward model raised {raised!r}.")
        self._shape = shape = self._shape or features.shape[1:]
        if len(features) == count and features.shape[1:] == shape:
            return features
        return RuntimeError(
            f"A scorer returned features of shape {features.shape} for {count} states, and before {shape} for each."
        )

    def _answer(self, batch: StateBatch, answer: Features | Exception, *, idle: bool) -> None:
        with self._lock:
            start = 0
            for part in batch.parts:
                stop = start + len(part)
                if part.is_live:
                    if isinstance(answer, Exception):
                        self._end(part.request, answer)
                    elif part.request.deliver(answer[start:stop], part.start):
                        del self._requests[part.request]
                start = stop
            self._num_idle += idle
            self._changed.notify_all()

    def _return(self, unanswered: Sequence[StateBatch], died: WorkerDied) -> None:
        """Take back the batches that a worker had when it died; those that have killed too many fail."""
        with self._lock:
            for batch in reversed(unanswered):
                batch.num_crashes += 1
                if batch.num_crashes < MAX_CRASHES:
                    self._returned.appendleft(batch)
                else:
                    self._answer(batch, died, idle=False)
            self._changed.notify_all()

    def _end(self, request: Request, failure: Exception) -> None:
        """Fail an attempt; states that are not in a batch yet are dropped with it."""
        del self._requests[request]
        request.end(failure)


def _closed_error() -> RuntimeError:
    return RuntimeError("Scoring has ended: the environment was closed before these states were scored.")
