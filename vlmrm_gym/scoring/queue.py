"""Batches requests of any size for any number of scorers, and returns what was made of them."""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rendering import States
from vlmrm_gym.rewards.state_reward import RewardInfo
from vlmrm_gym.scoring.interrupts import OneShotEvent, defer_signals
from vlmrm_gym.scoring.requests import Dispatch, Part, Request
from vlmrm_gym.scoring.scorer import Drawing, Output, Scorer, ScorerUnavailable, Values

CLOSE_TIMEOUT = 2.0
"""Seconds that `close` waits for batches in progress."""


class ScoringQueue:
    """Splits requests of any size into batches and distributes them over scorers.

    Each scorer has a thread that feeds it. Batches are of equal size, chosen to keep all scorers busy to the end. They
    depend only on what is submitted, not on the scorers' speed, because a reward's last digits depend on its batch.

    Args:
        scorers: Closed with the queue.
        batch_size: Maximum batch size.
        max_pending_bytes: Maximum memory for pending states; `submit` blocks while it is used up.
        info: What the reward is of.
    """

    def __init__(
        self,
        scorers: Sequence[Scorer],
        *,
        batch_size: int,
        max_pending_bytes: int,
        info: RewardInfo,
    ) -> None:
        self.info = info
        self._scorers, self.batch_size, self.max_pending_bytes = list(scorers), batch_size, max_pending_bytes
        self._waiting: deque[Request] = deque()
        """Requests with states that are not in a batch yet."""
        self._returned: deque[Dispatch] = deque()
        """Batches of scorers that became unavailable; dispatched first, unchanged."""
        self._num_queued = self._pending_bytes = 0
        self._size = batch_size
        """Size of the next batches."""
        self._idle = 0
        self._closed, self._process = False, os.getpid()
        self._changed = threading.Condition()
        self._freed = OneShotEvent()
        """Set, and replaced, when memory is freed."""
        self._threads = [
            threading.Thread(target=self._feed, args=(scorer,), name=f"vlmrm-score-{number}", daemon=True)
            for number, scorer in enumerate(self._scorers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pending_bytes(self) -> int:
        """Bytes of all states that are not scored yet."""
        return self._pending_bytes

    def rewards(self, states: States) -> NDArray[np.float32]:
        """Score B states, and wait for their rewards: float32 (B,). Blocks and raises like what follows."""
        return self._make(states, "rewards")

    def features(self, states: States) -> NDArray[np.float32]:
        """The features of B states of V views: float32 (B, V, D)."""
        return self._make(states, "features")

    def frames(self, states: States, size: tuple[int, int] | None = None, views: Any = None) -> NDArray[np.uint8]:
        """Draw B states.

        Args:
            states: The states.
            size: (height, width) in pixels; None: as the model sees them.
            views: MuJoCo environments only: the cameras, as `camera` of `VLMReward`; None: those of the reward.

        Returns:
            uint8 (B, V, height, width, 3).

        Raises:
            ValueError: As `Drawings.draw`.
            Exception: Raised by the renderer.
        """
        return self._make(states, Drawing(size, views))

    def _make(self, states: States, output: Output) -> Values:
        request = Request(states, np.arange(len(states)), output)
        self.submit(request)
        if error := request.error():
            raise error
        return request.values

    def submit(self, *requests: Request) -> None:
        """Score requests, batched together. Requests in progress or scored are skipped.

        Blocks while memory is full. If a signal handler raises, some requests may not be submitted; submit all again.

        Raises:
            RuntimeError: The queue is closed, or this process is a fork.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "This process was forked from the one that scores, and threads do not survive a fork. Make the "
                'environments in this process, or start it by "spawn" instead of "fork".'
            )
        while requests:
            with defer_signals(), self._changed:
                if self._closed:
                    raise _closed_error()
                requests, freed = self._accept(requests), self._freed
            if requests:
                freed.wait()

    def _accept(self, requests: tuple[Request, ...]) -> tuple[Request, ...]:
        """Accept requests in order; returns those that do not fit in memory yet."""
        accepted = 0
        for request in requests:
            if request.states is not None and (request.done() or not request.submitted):
                if self._pending_bytes > max(0, self.max_pending_bytes - request.nbytes):
                    break
                request.begin()
                request.submitted = True
                self._waiting.append(request)
                self._num_queued += len(request)
                self._pending_bytes += request.nbytes
            accepted += 1
        if self._num_queued:
            rounds = math.ceil(self._num_queued / (self.batch_size * len(self._scorers)))
            self._size = math.ceil(self._num_queued / (rounds * len(self._scorers)))
            self._changed.notify_all()
        return requests[accepted:]

    def close(self) -> None:
        """Stop scoring; unfinished requests fail with a RuntimeError."""
        if os.getpid() != self._process:
            return  # in a fork, scorers and threads belong to the parent
        with defer_signals():
            with self._changed:
                if self._closed:
                    return
                self._closed = True
                self._changed.notify_all()
                freed, self._freed = self._freed, OneShotEvent()  # `_finish` sets the new one
                freed.set()
            for scorer in self._scorers:
                scorer.abort()
        # A scorer in this process cannot be interrupted; its thread frees everything when it finishes.
        until = time.monotonic() + CLOSE_TIMEOUT
        for thread in self._threads:
            if thread is not threading.current_thread():  # garbage collection on that thread may have called this
                thread.join(max(0.0, until - time.monotonic()))
        with self._changed:
            unscored = {part.request for dispatch in self._returned for part in dispatch.parts if part.is_live}
            for request in unscored.union(self._waiting):
                self._fail(request, _closed_error())

    def _feed(self, scorer: Scorer) -> None:
        """Send batches to a scorer and deliver what it makes of them, until the queue is closed."""
        unanswered: deque[Dispatch] = deque()
        while not self._closed and scorer.wait_until_available():
            with self._changed:
                self._idle += 1
            self._feed_available(scorer, unanswered)
        with self._changed:
            for part in (part for dispatch in unanswered for part in dispatch.parts):
                if part.is_live:
                    self._fail(part.request, _closed_error())
        scorer.close()

    def _feed_available(self, scorer: Scorer, unanswered: deque[Dispatch]) -> None:
        """Feed a scorer until it becomes unavailable, or the queue is closed."""
        while not self._closed:
            if dispatch := self._next_dispatch(len(unanswered), scorer.max_in_flight):
                try:
                    batch = dispatch.make_batch()
                except ValueError as error:  # states of differing shapes
                    self._answer(dispatch, None, error, idle=not unanswered)
                    continue
                unanswered.append(dispatch)
                scorer.send(batch)
            elif unanswered:
                try:
                    values, error = self._receive(scorer, len(unanswered[0]))
                except ScorerUnavailable:
                    with self._changed:
                        self._returned.extendleft(reversed(unanswered))
                        unanswered.clear()
                        self._changed.notify_all()
                    return
                dispatch = unanswered.popleft()
                self._answer(dispatch, values, error, idle=not unanswered)

    def _next_dispatch(self, num_unanswered: int, max_in_flight: int) -> Dispatch | None:
        """The next batch for a scorer; None if there is none, or the scorer has enough to do."""
        with self._changed:
            if not num_unanswered:
                self._changed.wait_for(lambda: self._closed or self._num_queued or self._returned)
            elif num_unanswered >= min(max_in_flight, self._fair_share()) or self._idle:
                return None
            if self._closed or not (self._num_queued or self._returned):
                return None
            if not num_unanswered:
                self._idle -= 1
            return self._returned.popleft() if self._returned else Dispatch(self._cut_batch())

    def _fair_share(self) -> int:
        """Batches that one scorer may take: the waiting batches divided by the scorers, at least 2."""
        num_batches = math.ceil(self._num_queued / self._size) + len(self._returned)
        return max(2, math.ceil(num_batches / len(self._scorers)))

    def _cut_batch(self) -> list[Part]:
        room = min(self._num_queued, self._size)
        parts: list[Part] = []
        while room:
            request = self._waiting[0]
            if parts and (request.isolate or parts[-1].request.isolate or request.output != parts[-1].request.output):
                break
            assert request.states is not None
            start = request.num_dispatched
            stop = min(start + room, len(request))
            parts.append(Part(request, start, stop, request.states[start:stop], request.finished))
            request.num_dispatched = stop
            room -= stop - start
            self._num_queued -= stop - start
            if stop == len(request):
                self._waiting.popleft()
        return parts

    def _receive(self, scorer: Scorer, count: int) -> tuple[Values | None, BaseException | None]:
        """Wait for what was made of a batch, or its error."""
        try:
            values = scorer.receive()
            if len(values) != count:
                raise RuntimeError(f"A scorer returned values of shape {values.shape} for {count} states.")
        except ScorerUnavailable:
            raise
        except BaseException as raised:  # including SystemExit from a model, because the caller is waiting
            if self._closed:
                return None, _closed_error()
            return None, raised if isinstance(raised, Exception) else RuntimeError(f"A reward model raised {raised!r}.")
        return values, None

    def _answer(self, dispatch: Dispatch, values: Values | None, error: BaseException | None, *, idle: bool) -> None:
        with self._changed:
            start = 0
            for part in dispatch.parts:
                stop = start + len(part)
                if part.is_live:
                    if values is None:
                        self._fail(part.request, error)
                    else:
                        self._deliver(part, values[start:stop])
                start = stop
            self._idle += idle
            self._changed.notify_all()

    def _deliver(self, part: Part, values: Values) -> None:
        request = part.request
        if request.num_scored == 0:
            request.values = np.empty((len(request), *values.shape[1:]), dtype=values.dtype)
        request.values[part.start : part.stop] = values
        request.num_scored += len(values)
        if request.num_scored == len(request):
            request.states = None
            self._finish(request)

    def _fail(self, request: Request, error: BaseException | None) -> None:
        """End an attempt with an error; drop its states that are not in a batch yet."""
        if request in self._waiting:
            self._waiting.remove(request)
            self._num_queued -= len(request) - request.num_dispatched
        request.isolate = True  # retry alone, so that it cannot fail its neighbours
        request.failure = error
        self._finish(request)

    def _finish(self, request: Request) -> None:
        self._pending_bytes -= request.nbytes
        request.finished.set()
        freed, self._freed = self._freed, OneShotEvent()
        freed.set()


def _closed_error() -> RuntimeError:
    return RuntimeError("Scoring has ended: the environment was closed before these states were scored.")
