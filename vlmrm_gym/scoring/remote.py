"""A scorer whose worker is another process, here or on a Ray node: it is replaced when it dies or stops."""

import math
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from vlmrm_gym.rewards.model import Features
from vlmrm_gym.scoring.requests import StateBatch
from vlmrm_gym.scoring.scorer import MakeRenderer, StartedScorers, WorkerDied
from vlmrm_gym.scoring.state_encoder import EncoderInfo

TICK = 0.2
"""Seconds between checks that a worker is alive and makes progress."""
LOG_TAIL_BYTES = 4_000
"""Bytes of a dead worker's log that an error shows."""
_SILENCE: tuple[str, Any] = "", None


class Channel(Protocol):
    """A new worker, and what is exchanged with it: see `worker`. One thread calls all methods but `kill`."""

    name: str
    """The worker's, for messages."""
    max_in_flight: int = 2
    """The most unanswered batches: one is drawn while the one before it is encoded."""

    def wait_until_placed(self, timeout: float | None) -> bool:
        """Tell whether the worker runs, or has died, waiting at most `timeout` seconds; False also after `kill`."""
        return True

    def put(self, message: bytes) -> None:
        """Send a pickled message. Neither blocks nor raises if the worker is dead."""
        ...

    def get(self, timeout: float) -> tuple[str, Any] | None:
        """Receive the next message; ("end", how it died) if there will be none; None after `timeout` seconds."""
        ...

    def log_tail(self) -> str:
        """Read the end of its standard error, before `close`."""
        ...

    def kill(self) -> None:
        """Kill the worker, at the latest by `close`; `get` then returns soon. Any thread may call this, also again."""
        ...

    def close(self) -> None:
        """Wait until it is killed, and free what belongs to it. `kill` comes before."""
        ...


_DOING = {"load": "loading the model", "draw": "drawing frames", "encode": "encoding frames"}


class Watchdog:
    """Counts the seconds without progress of each stage of a worker that has work."""

    def __init__(self, timeouts: Mapping[str, float | None]) -> None:
        self._limits = {stage: timeouts[stage] or math.inf for stage in _DOING}
        self._silent = dict.fromkeys(_DOING, 0.0)
        self._loaded = False
        self.num_sent = 0
        """Batches that the worker has been sent."""
        self._num_drawn = self._num_answered = 0

    def advance(self, seconds: float, kind: str = "", payload: Any = None) -> str | None:
        """Account for time, and the worker's message that ended it; returns what it has done too long, or None."""
        progressing = payload if kind == "progress" else None
        self._loaded |= kind == "ready"
        self._num_drawn += progressing == "drawn"
        self._num_answered += kind in ("answer", "error")
        working = {
            "load": not self._loaded,
            "draw": self._loaded and self.num_sent > self._num_drawn,
            "encode": self._num_drawn > self._num_answered,
        }
        wrong = None
        for stage, is_working in working.items():
            self._silent[stage] = self._silent[stage] + seconds if is_working and stage != progressing else 0.0
            if not kind and self._silent[stage] > self._limits[stage]:
                wrong = (
                    f"did not respond for {self._limits[stage]:g} seconds ({_DOING[stage]}). If it needs longer, "
                    f'pass worker_timeouts={{"{stage}": seconds}}.'
                )
        return wrong


class RemoteScorer:
    """A `Scorer` with one worker at a time.

    The first message to each worker is `make_encoder`, a pickled function.
    """

    def __init__(
        self, start_worker: Callable[[], Channel], make_encoder: bytes, timeouts: Mapping[str, float | None]
    ) -> None:
        self._start_worker, self._make_encoder, self._timeouts = start_worker, make_encoder, timeouts
        self._renderer, self._closed = b"", False
        self._replacing = threading.RLock()  # reentrant: garbage collection may close it here
        self._connect()

    def _connect(self) -> None:
        self._channel = self._start_worker()
        self._watchdog = Watchdog(self._timeouts)
        self._channel.put(self._make_encoder)

    @property
    def max_in_flight(self) -> int:
        """The most unanswered batches."""
        return self._channel.max_in_flight

    def wait_until_placed(self, timeout: float | None) -> bool:
        """Tell whether the worker has a place to run, waiting at most `timeout` seconds."""
        return self._channel.wait_until_placed(timeout)

    def wait_until_available(self) -> bool:
        """Block until the worker has a place to run; False if `abort` was called."""
        return self._channel.wait_until_placed(None) and not self._closed

    def wait_until_ready(self) -> EncoderInfo:
        """Wait for the model. An exception of loading has the worker's traceback as a note."""
        return pickle.loads(self._read("ready"))

    def set_renderer(self, renderer: bytes) -> None:
        """Send the pickled renderer, now and to every replacement."""
        self._renderer = renderer
        self._channel.put(renderer)

    def send(self, batch: StateBatch) -> None:
        """Submit a batch."""
        self._watchdog.num_sent += 1
        self._channel.put(pickle.dumps((batch.keys, batch.states), protocol=5))

    def receive(self) -> Features:
        """Wait for the features of the oldest unanswered batch. An exception has the worker's traceback as a note."""
        try:
            return self._read("answer")
        except WorkerDied:
            self._replace()
            raise

    def _read(self, wanted: str) -> Any:
        """Wait for the next message of a kind; raise any error received instead."""
        (kind, payload), texts = _SILENCE, list[str]()
        while kind not in (wanted, "error"):
            begun = time.monotonic()
            kind, payload = self._channel.get(TICK) or _SILENCE
            # A longer interval means that this process was stopped as well, or the machine slept.
            wrong = self._watchdog.advance(min(time.monotonic() - begun, 2 * TICK), kind, payload)
            if wrong or kind == "end":
                text = f"{self._channel.name} {wrong or payload}"
                if not self._closed:
                    text = f"{text} The end of its log: {self._channel.log_tail() or '(empty)'}"
                raise WorkerDied(" ".join([text, *texts]))
            if kind == "warning":
                texts.append(payload)
        for text in texts:  # after the message, which the next call would take for its own if a warning is an error
            warnings.warn(text, stacklevel=7)  # while loading: the caller of VLMRewardVectorEnv
        if kind == "error":
            raise payload
        return payload

    def _replace(self) -> None:
        with self._replacing:
            if self._closed:
                return
            dead = self._channel
            dead.kill()
            self._connect()
            dead.close()
            if self._closed:  # by garbage collection
                self._channel.kill()
        if self._renderer:
            self._channel.put(self._renderer)

    def abort(self) -> None:
        """Kill the worker; `receive` raises soon."""
        with self._replacing:
            self._closed = True
            self._channel.kill()

    def close(self) -> None:
        """Kill the worker and wait for it to end."""
        self.abort()
        self._channel.close()


def finish_start(
    scorers: Sequence[RemoteScorer], placed: Sequence[RemoteScorer], make_renderer: MakeRenderer
) -> StartedScorers:
    """Wait for the models of `placed`, at least one, and send the renderer to all workers."""
    infos = [scorer.wait_until_ready() for scorer in placed]
    if infos[0].ordered:
        raise ValueError("`num_workers` must be 0 for a reward that sees the states of an episode in order.")
    renderer = make_renderer(infos[0].render_size)
    for scorer in scorers:
        scorer.set_renderer(pickle.dumps(renderer))
    return StartedScorers(scorers, replace(infos[0], batch_size=min(info.batch_size for info in infos)), renderer)
