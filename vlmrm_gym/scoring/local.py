"""Scoring in this process: the "local" backend, also used inside every worker; and without threads."""

import copy
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from vlmrm_gym.rewards.model import Features
from vlmrm_gym.scoring.options import ScoringOptions
from vlmrm_gym.scoring.requests import StateBatch
from vlmrm_gym.scoring.scorer import MakeEncoder, MakeRenderer, StartedScorers, choose_devices
from vlmrm_gym.scoring.state_encoder import Progress, Seen, Stage, StateEncoder
from vlmrm_gym.states import Renderer


def start(make_encoder: MakeEncoder, make_renderer: MakeRenderer, options: ScoringOptions) -> StartedScorers:
    """Start one scorer on threads of this process."""
    (device,) = choose_devices(options)
    encoder = make_encoder(device=device)
    renderer = make_renderer(encoder.info.render_size)
    # A copy for the thread of the environments: what it draws with is its own, the scene is the same.
    return StartedScorers([LocalScorer(encoder, renderer)], encoder.info, copy.copy(renderer))


Answer = Features | BaseException
"""The features of a batch, or why there are none."""


class LocalScorer:
    """Renders states on the calling thread and encodes the frames on another.

    The two overlap on a GPU, and on a CPU with more than one core. `answer` takes the answers, in the order of the
    batches; without it `receive` returns them.
    """

    max_in_flight = 2
    """One batch is drawn while the one before it is encoded."""

    def __init__(
        self,
        encoder: StateEncoder,
        renderer: Renderer,
        answer: Callable[[Answer], object] | None = None,
        progress: Progress = lambda stage: None,
    ) -> None:
        self._encoder, self._renderer, self._report = encoder, renderer, progress
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._answer, self._aborted = answer or self._answers.put, False
        self._drawn: queue.SimpleQueue[tuple[Sequence[Seen] | BaseException, StateBatch] | None] = queue.SimpleQueue()
        # A daemon thread, unlike an executor's: the interpreter exits without waiting for the current batch.
        self._thread = threading.Thread(target=self._encode, name="vlmrm-encode", daemon=True)
        self._thread.start()

    def wait_until_available(self) -> bool:
        """Return at once."""
        return not self._aborted

    def send(self, batch: StateBatch) -> None:
        """Draw a batch and queue its frames for encoding."""
        try:
            seen = self._encoder.see(batch, self._renderer, self._progress)
        except BaseException as error:  # including SystemExit, because the caller is waiting
            seen = error
        self._report("drawn")
        self._drawn.put((seen, batch))

    def receive(self) -> Features:
        """Wait for the features of the oldest unanswered batch."""
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def abort(self) -> None:
        """Stop encoding after the current microbatch, and programs at once."""
        self._aborted = True
        self._encoder.close()

    def close(self) -> None:
        """Stop encoding, and free the renderer."""
        self._drawn.put(None)
        self._thread.join()
        self._renderer.close()
        self._encoder.close_drawings()
        self._encoder.close()

    def _encode(self) -> None:
        while (drawn := self._drawn.get()) is not None:
            seen, batch = drawn
            try:
                if isinstance(seen, BaseException):
                    raise seen
                self._answer(self._encoder.encode(seen, batch, self._progress))
            except BaseException as error:
                self._answer(error)
            del drawn, seen, batch  # free them before waiting for the next batch

    def _progress(self, stage: Stage) -> None:
        """Raise if scoring has ended: a daemon thread inside torch at interpreter exit crashes the program."""
        if self._aborted:
            raise RuntimeError("Scoring was stopped.")
        self._report(stage)


class DirectScorer:
    """Encodes states at once, in the calling thread; otherwise like a `ScoringQueue`. It can be copied and pickled."""

    def __init__(self, encoder: StateEncoder, renderer: Renderer) -> None:
        self._encoder, self._renderer = encoder, renderer
        self.info, self.batch_size, self.pending_bytes = encoder.info, encoder.info.batch_size, 0

    def submit(self, *requests: Any) -> None:
        """Encode the states of requests."""
        for request in requests:
            request.begin()
            try:
                batch = StateBatch.of([request.cut(len(request))])
                request.deliver(self._encoder.encode(self._encoder.see(batch, self._renderer), batch))
            except BaseException:
                request.end(RuntimeError("Encoding has failed."))  # not the error: it may forbid copies
                raise

    def close(self) -> None:
        """Free the renderer and the model's processes."""
        self._renderer.close()
        self._encoder.close_drawings()
        self._encoder.close()
