"""Requests to the scoring queue, and the batches made from them."""

import threading
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from vlmrm_gym.rewards.state_reward import Memory
from vlmrm_gym.scoring.scorer import Batch, Keys, Output, Values
from vlmrm_gym.states import States


class Request:
    """N states to score, with the keys (N,) of their transitions; holds what was made of them.

    The states are freed once they are scored. A failed request keeps them, and can be submitted again. Of ordered
    rewards, `after` is the request of the states of the episode before these; None: the episode begins.
    """

    def __init__(self, states: States, keys: Keys, output: Output = "rewards", after: "Request | None" = None) -> None:
        self.states: States | None = states
        self.keys = keys
        self.output: Output = output
        self.kind = (output, states.rows.shape[1:], states.rows.dtype, states.clips is None)
        """Requests of one kind can share a batch."""
        self.nbytes = states.nbytes
        self.isolate = False
        """Whether it has failed, and goes alone, so that it cannot fail its neighbours."""
        self.values: Values = np.empty(0, dtype=np.float32)
        """What was made of the N states, once `done` without an error."""
        self.after = after
        """None also once these are scored: the memory of an episode's states is freed."""
        self.memory: Memory = None
        """What an ordered reward remembers after the states that are scored."""
        self.attempt = 0
        self.begin()

    def __len__(self) -> int:
        return len(self.keys)

    def begin(self) -> None:
        """Start a new attempt."""
        self.attempt += 1
        self.num_dispatched = self.num_scored = 0
        self.memory = None
        self._failure: BaseException | None = None
        self._done = False
        # Not an Event: an exception of a signal's handler could leave it locked for ever.
        self._gate = threading.Lock()
        self._gate.acquire()

    def end(self, failure: BaseException | None = None) -> None:
        """End this attempt, once."""
        self.isolate = failure is not None
        self._failure, self._done = failure, True
        self._gate.release()

    @property
    def num_waiting(self) -> int:
        """Number of states that can go into a batch now. Of an ordered reward, one batch comes after the other."""
        is_blocked = self.num_scored < self.num_dispatched or (self.after is not None and not self.after.done())
        return 0 if self.output == "ordered" and is_blocked else len(self) - self.num_dispatched

    def done(self) -> bool:
        """Whether this attempt has succeeded or failed."""
        return self._done

    def error(self) -> BaseException | None:
        """Wait for the end of the attempt; returns its error, or None."""
        with self._gate:
            return self._failure


@dataclass(frozen=True, eq=False)
class Part:
    """Successive states of a request, in one batch."""

    request: Request
    start: int
    stop: int
    states: States
    attempt: int
    memory: Memory
    """What an ordered reward remembers of the states before them."""

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def is_live(self) -> bool:
        """Whether the request still needs these rewards: no other part has failed."""
        return self.request.attempt == self.attempt and not self.request.done()


@dataclass(eq=False)
class Dispatch:
    """A batch and its parts of requests."""

    parts: list[Part]
    num_crashes: int = field(default=0, init=False)
    """Workers that died, or stopped, while they had it."""

    @cached_property
    def batch(self) -> Batch:
        """What a scorer gets; the same each time, because a reward's last digits depend on its batch."""
        keys = np.concatenate([part.request.keys[part.start : part.stop] for part in self.parts])
        states = States.concatenate([part.states for part in self.parts])
        output = self.parts[0].request.output
        runs = [(len(part), part.memory) for part in self.parts] if output == "ordered" else []
        return Batch(keys, states, output, runs)
