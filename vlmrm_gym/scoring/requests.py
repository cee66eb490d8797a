"""Requests to the scoring queue, and the batches made from them."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.rewards.model import Features
from vlmrm_gym.states import States

Keys = NDArray[np.int64]
MAX_STEPS = 2**40
"""Steps of an environment that have distinct keys."""

EpisodeMemory = dict[int, Any]
"""What an ordered model remembers of an episode, by the key of the state that comes next; None where it begins.

Requests of the states of one episode share it, so that states that are scored again find what came before them.
"""


def transition_keys(env_index: ArrayLike, step_index: ArrayLike) -> Keys:
    """Make one key per transition, int64 (N,): of the environment's index in its vector, and `vlm_step_index`."""
    return np.asarray(env_index, dtype=np.int64) * MAX_STEPS + np.asarray(step_index, dtype=np.int64)


@dataclass(eq=False)
class StateBatch:
    """States to encode in one call."""

    keys: Keys
    """int64 (B,): identify the transitions that led to the states, see `transition_keys`."""
    states: States
    """B states."""
    runs: Sequence[tuple[int, int, EpisodeMemory | None]] = ()
    """Successive states of one episode: the first, the one after the last, and its memory if the model is ordered. As
    `parts`, only in the process of the queue."""
    parts: "Sequence[Part]" = ()
    """Of the requests that the states are from."""
    num_crashes: int = 0
    """Workers that died, or stopped, while they had it."""

    @classmethod
    def of(cls, parts: "Sequence[Part]") -> "StateBatch":
        """Make the batch of parts of requests."""
        keys = np.concatenate([part.request.keys[part.start : part.stop] for part in parts])
        stops = np.cumsum([len(part) for part in parts]).tolist()
        runs = [(stop - len(part), stop, part.request.memory) for stop, part in zip(stops, parts, strict=True)]
        return cls(keys, States.concatenate([part.states for part in parts]), runs, parts)

    def __len__(self) -> int:
        return len(self.states)


class Request:
    """N states to encode, with the keys (N,) of their transitions; holds their features.

    The states are freed once they are encoded. A failed request keeps them, and can be submitted again.
    """

    def __init__(self, states: States, keys: Keys, memory: EpisodeMemory | None = None) -> None:
        self.states: States | None = states
        self.keys, self.memory = keys, memory
        self.kind = (states.rows.shape[1:], states.rows.dtype, states.clips is None)
        """Requests of one kind can share a batch."""
        self.nbytes = states.nbytes
        self.isolate = False
        """Whether it has failed, and goes alone, so that it cannot fail its neighbours."""
        self.features: Features = np.empty((0, 1, 1), dtype=np.float32)
        """float32 (N, V, D), once `done` without an error."""
        self.attempt = 0
        self.begin()

    def __len__(self) -> int:
        return len(self.keys)

    def begin(self) -> None:
        """Start a new attempt."""
        self.attempt += 1
        self.num_dispatched = self.num_scored = 0
        self._failure: BaseException | None = None
        self._done = False
        # Not an Event: an exception of a signal's handler could leave it locked for ever.
        self._gate: threading.Lock | None = threading.Lock()
        self._gate.acquire()

    def end(self, failure: BaseException | None = None) -> None:
        """End this attempt, once."""
        self.isolate = failure is not None
        self._failure, self._done = failure, True
        gate, self._gate = self._gate, None  # what has ended can be copied
        assert gate is not None
        gate.release()

    def deliver(self, features: Features, start: int = 0) -> bool:
        """Keep the features of successive states, from one on. Returns whether these were the last."""
        if self.num_scored == 0:
            self.features = np.empty((len(self), *features.shape[1:]), dtype=np.float32)
        self.features[start : start + len(features)] = features
        self.num_scored += len(features)
        if self.num_scored < len(self):
            return False
        self.states = None
        self.end()
        return True

    def cut(self, room: int) -> "Part":
        """Cut the next states, at most `room` of them."""
        assert self.states is not None
        start = self.num_dispatched
        self.num_dispatched = stop = min(start + room, len(self))
        return Part(self, start, stop, self.states[start:stop], self.attempt)

    @property
    def num_waiting(self) -> int:
        """Number of states that are not in a batch yet."""
        return len(self) - self.num_dispatched

    def done(self) -> bool:
        """Tell whether this attempt has succeeded or failed."""
        return self._done

    def error(self) -> BaseException | None:
        """Wait for the end of the attempt; returns its error, or None."""
        if (gate := self._gate) is not None:
            with gate:
                pass
        return self._failure


@dataclass(frozen=True, eq=False)
class Part:
    """Successive states of a request, in one batch."""

    request: Request
    start: int
    stop: int
    states: States
    attempt: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def is_live(self) -> bool:
        """Whether the request still needs these features: no other part has failed."""
        return self.request.attempt == self.attempt and not self.request.done()
