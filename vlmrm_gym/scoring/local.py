"""Scoring in this process: the "local" backend, also used inside every worker."""

import copy
import queue
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from vlmrm_gym.rewards.model import Features
from vlmrm_gym.scoring.backends import choose_devices
from vlmrm_gym.scoring.encoder_part import Progress, Seen
from vlmrm_gym.scoring.options import ScoringOptions
from vlmrm_gym.scoring.requests import StateBatch
from vlmrm_gym.scoring.scorer import MakeEncoder, MakeRenderer, StartedScorers
from vlmrm_gym.scoring.state_encoder import StateEncoder
from vlmrm_gym.states import Renderer


def start(make_encoder: MakeEncoder, make_renderer: MakeRenderer, options: ScoringOptions) -> StartedScorers:
    """Start one scorer on threads of this process."""
    (device,) = choose_devices(options)
    encoder = make_encoder(device=device)
    renderer = make_renderer(encoder.info.render_size)
    # A copy for the thread of the environments: what it draws with is its own, the scene is the same.
    return StartedScorers([LocalScorer(encoder, renderer)], encoder.info, copy.copy(renderer))


class LocalScorer:
    """Renders states on the calling thread and encodes the frames on another.

    The two overlap on a GPU, and on a CPU with more than one core. `progress` is called with "draw" after every
    `FRAMES_PER_DRAW` frames, and with "encode" after every microbatch.
    """

    max_in_flight = 2
    """One batch is drawn while the one before it is encoded."""

    def __init__(self, encoder: StateEncoder, renderer: Renderer, progress: Progress = lambda stage: None) -> None:
        self._encoder, self._renderer, self._progress = encoder, renderer, progress
        self._unanswered: deque[Future[Features]] = deque()
        self._aborted = False
        self._drawn: queue.SimpleQueue[tuple[Sequence[Seen] | BaseException, StateBatch, Future[Features]] | None]
        self._drawn = queue.SimpleQueue()
        # A daemon thread, unlike an executor's: the interpreter exits without waiting for the current batch.
        self._thread = threading.Thread(target=self._encode, name="vlmrm-encode", daemon=True)
        self._thread.start()

    def wait_until_available(self) -> bool:
        """Return at once."""
        return not self._aborted

    def submit(self, batch: StateBatch) -> Future[Features]:
        """Draw a batch and queue its frames for encoding. The futures complete in the order of the batches."""
        future: Future[Features] = Future()
        try:
            seen = self._encoder.see(batch, self._renderer, self._progress)
        except BaseException as error:  # including SystemExit, because the caller is waiting
            seen = error
        self._drawn.put((seen, batch, future))
        return future

    def send(self, batch: StateBatch) -> None:
        """Draw a batch; `receive` returns its features."""
        self._unanswered.append(self.submit(batch))

    def receive(self) -> Features:
        """Wait for the features of the oldest unanswered batch."""
        return self._unanswered.popleft().result()

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
            seen, batch, future = drawn
            try:
                if isinstance(seen, BaseException):
                    raise seen
                future.set_result(self._encoder.encode(seen, batch, self._begin_microbatch, self._progress))
            except BaseException as error:
                future.set_exception(error)
            del drawn, seen, batch, future  # free them before waiting for the next batch

    def _begin_microbatch(self) -> None:
        """Raise if scoring has ended: a daemon thread inside torch at interpreter exit crashes the program."""
        if self._aborted:
            raise RuntimeError("Scoring was stopped.")
