"""Replacement of workers that die or hang, shared by all backends with workers."""

import pickle
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from vlmrm_gym.scoring.scorer import Batch, MakeRenderer, ScorerUnavailable, StartedScorers, Values
from vlmrm_gym.scoring.worker import Answer, WorkerInfo

MAX_CRASHES = 3
"""Worker deaths over the same batch that raise an error."""
LOG_TAIL_BYTES = 4_000
"""Bytes of a dead worker's log that an error shows."""


class WorkerDied(RuntimeError):
    """Three workers died, or did not respond, over the same states; the message ends with the last one's log."""


class Worker(Protocol):
    """One worker. Loads the model in the background."""

    @property
    def max_in_flight(self) -> int:
        """The most unanswered batches."""
        ...

    def wait_until_available(self, timeout: float | None) -> bool:
        """Whether it has a place to run, waiting at most `timeout` seconds; False also after `kill`."""
        ...

    def wait_until_ready(self) -> WorkerInfo:
        """Wait for the model; raises WorkerDied, or the error from loading."""
        ...

    def log_tail(self) -> str:
        """The end of its standard error. Called after its death, before `reap`."""
        ...

    def set_renderer(self, renderer: bytes) -> None:
        """Send the pickled renderer."""
        ...

    def send(self, batch: Batch) -> None:
        """Send a batch. A dead worker is detected by `receive`."""
        ...

    def receive(self) -> Answer:
        """Wait for the next answer; raises WorkerDied, or the error from scoring."""
        ...

    def kill(self) -> None:
        """Kill it; a blocked call ends soon. Any thread may call this."""
        ...

    def reap(self) -> None:
        """Kill it and free its resources."""
        ...


class RestartingScorer:
    """A `Scorer` with one worker at a time. A batch over which a worker died is retried alone.

    Args:
        start_worker: Starts a worker.
        placement_timeout: Seconds that a replacement may wait for a node before its batches are returned; None: no
            limit.
    """

    def __init__(self, start_worker: Callable[[], Worker], placement_timeout: float | None = None) -> None:
        self._start_worker, self._placement_timeout = start_worker, placement_timeout
        self._renderer: bytes | None = None
        self._unanswered: deque[Batch] = deque()
        self._num_sent = 0
        """Unanswered batches at the current worker."""
        self._num_suspects = 0
        """Number of oldest unanswered batches that a dead worker had; retried one by one."""
        self._is_replacement = False
        """Whether the worker is a replacement that has not been sent a batch yet."""
        self._closed, self._replacing = False, threading.RLock()  # reentrant: garbage collection may close it here
        self._worker = start_worker()
        self.shown_warnings: dict[str, object] = {}
        """Warnings of workers that have been shown; one for all scorers. See `_show`."""

    @property
    def max_in_flight(self) -> int:
        """The most unanswered batches."""
        return self._worker.max_in_flight

    @property
    def worker(self) -> Worker:
        """The current worker."""
        return self._worker

    def wait_until_ready(self) -> WorkerInfo:
        """Wait for the model.

        Raises:
            WorkerDied: The worker died, or did not respond.
            Exception: Raised by loading, with the worker's traceback as a note.
        """
        try:
            return self._worker.wait_until_ready()
        except WorkerDied as died:
            raise self._with_log(died) from None

    def set_renderer(self, renderer: bytes) -> None:
        """Send the pickled renderer, now and to every replacement."""
        self._renderer = renderer
        self._worker.set_renderer(renderer)

    def wait_until_available(self) -> bool:
        """Block until the worker has a place to run; False if `abort` was called."""
        available = self._worker.wait_until_available(None) and not self._closed
        if not self._unanswered:
            self._is_replacement = False
        return available

    def send(self, batch: Batch) -> None:
        """Submit a batch."""
        self._unanswered.append(batch)
        if not self._is_replacement:
            self._send_all()

    def receive(self) -> Values:
        """Wait for what was made of the oldest unanswered batch. A dead worker is replaced.

        Raises:
            WorkerDied: Three workers died over it.
            ScorerUnavailable: The worker died, and there is no place for another yet.
            Exception: Raised by scoring, with the worker's traceback as a note.
        """
        while True:
            if self._is_replacement:
                if not self._worker.wait_until_available(self._placement_timeout) and not self._closed:
                    self._unanswered.clear()
                    self._num_suspects = 0
                    raise ScorerUnavailable
                self._is_replacement = False
                self._send_all()
            try:
                answer = self._worker.receive()
            except WorkerDied as died:
                batch = self._unanswered[0]
                batch.num_crashes += 1
                self._num_suspects = max(self._num_suspects, self._num_sent)
                if give_up := batch.num_crashes == MAX_CRASHES or self._closed:
                    self._unanswered.popleft()
                    batch.num_crashes = 0
                    self._num_suspects -= 1
                    died = self._with_log(died)
                try:
                    self._replace()
                except Exception:
                    if not give_up:
                        self._unanswered.popleft()
                    raise
                if give_up:
                    raise died from None
            except BaseException:
                self._answered()
                raise
            else:
                self._answered()
                self._show(answer.warnings)
                return answer.values

    def abort(self) -> None:
        """Kill the worker; `receive` raises soon."""
        with self._replacing:
            self._closed = True
            self._worker.kill()

    def close(self) -> None:
        """Kill the worker and wait for it to end."""
        self.abort()
        self._worker.reap()

    def _show(self, messages: Sequence[str]) -> None:
        """Warn of what a worker has warned of, unless another worker has, too."""
        for message in messages:
            mark = object()
            if self.shown_warnings.setdefault(message, mark) is mark:
                warnings.warn(message, stacklevel=2)

    def _with_log(self, died: WorkerDied) -> WorkerDied:
        if self._closed:
            return died
        return WorkerDied(f"{died} The end of its log: {self._worker.log_tail() or '(empty)'}")

    def _answered(self) -> None:
        self._unanswered.popleft()
        self._num_sent -= 1
        self._num_suspects = max(0, self._num_suspects - 1)
        self._send_all()

    def _send_all(self) -> None:
        """Send as many batches as allowed. A suspect is sent alone, so that a crash is attributable to it."""
        while self._num_sent < len(self._unanswered) and not (self._num_sent and self._has_suspect()):
            self._num_sent += 1
            self._worker.send(self._unanswered[self._num_sent - 1])

    def _has_suspect(self) -> bool:
        """Whether a sent batch or the next one may crash a worker; includes batches returned by another scorer."""
        first, following = self._unanswered[0], self._unanswered[self._num_sent]
        return self._num_suspects > 0 or first.num_crashes > 0 or following.num_crashes > 0

    def _replace(self) -> None:
        with self._replacing:
            if self._closed:
                return
            self._worker.reap()
            self._worker = self._start_worker()
            if self._closed:  # by garbage collection
                self._worker.kill()
        if self._renderer is not None:
            self._worker.set_renderer(self._renderer)
        self._num_sent, self._is_replacement = 0, True


def finish_start(
    scorers: Sequence[RestartingScorer], infos: Sequence[WorkerInfo], make_renderer: MakeRenderer
) -> StartedScorers:
    """Send the renderer to all workers, and show each warning from loading once.

    Args:
        scorers: All scorers.
        infos: What the workers reported that have loaded their models; at least one.
        make_renderer: See `make_scoring_queue`.
    """
    renderer = pickle.dumps(make_renderer(pickle.loads(infos[0].render_size)))
    shown: dict[str, object] = {message: info for info in infos for message in info.warnings}
    for scorer in scorers:
        scorer.shown_warnings = shown
        scorer.set_renderer(renderer)
    for message in tuple(shown):
        warnings.warn(message, stacklevel=6)
    return StartedScorers(scorers, min(info.batch_size for info in infos), pickle.loads(infos[0].info))
