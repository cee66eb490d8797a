"""Requests to the scoring queue, and the batches made from them."""

from dataclasses import dataclass

import numpy as np

from vlmrm_gym.rendering import States
from vlmrm_gym.scoring.interrupts import OneShotEvent
from vlmrm_gym.scoring.scorer import Batch, Keys, Output, Values


class Request:
    """States to score, with one key each; holds what was made of them.

    The states are freed once they are scored. A failed request keeps them, and can be submitted again.

    Args:
        states: N states.
        keys: int64 (N,): identify the transitions that led to the states, see `transition_keys`.
        output: What is made of the states.
        kept_bytes: Memory of other states that are kept until these are scored.

    Raises:
        ValueError: Keys of another shape or dtype.
    """

    def __init__(self, states: States, keys: Keys, output: Output = "rewards", kept_bytes: int = 0) -> None:
        if keys.shape != (len(states),) or keys.dtype != np.int64:
            raise ValueError(f"`keys` must be int64 ({len(states)},). Received {keys.dtype} {keys.shape}.")
        self.states: States | None = states
        self.keys = keys
        self.output: Output = output
        self.nbytes = states.nbytes + kept_bytes
        self.submitted = self.isolate = False
        self.values: Values = np.empty(0, dtype=np.float32)
        """What was made of the N states, once `done` without an error."""
        self.begin()

    def __len__(self) -> int:
        return len(self.keys)

    def begin(self) -> None:
        """Start a new attempt."""
        self.num_dispatched = self.num_scored = 0
        self.failure: BaseException | None = None
        self.finished = OneShotEvent()
        """Set when this attempt ends."""

    def done(self) -> bool:
        """Whether this attempt has succeeded or failed."""
        return self.finished.is_set()

    def error(self) -> BaseException | None:
        """Wait for the end of the attempt; returns its error, or None."""
        self.finished.wait()
        return self.failure


@dataclass(frozen=True, eq=False)
class Part:
    """Successive states of a request, in one batch."""

    request: Request
    start: int
    stop: int
    states: States
    attempt: OneShotEvent

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def keys(self) -> Keys:
        """int64 (stop - start,)."""
        return self.request.keys[self.start : self.stop]

    @property
    def is_live(self) -> bool:
        """Whether the request still needs these rewards: no other part has failed."""
        return self.request.finished is self.attempt and not self.attempt.is_set()


@dataclass(eq=False)
class Dispatch:
    """A batch and its parts of requests, of which the same is made."""

    parts: list[Part]
    batch: Batch | None = None
    """Made once, so that it keeps its crash count if another scorer gets it."""

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def make_batch(self) -> Batch:
        """The batch.

        Raises:
            ValueError: States of differing shapes.
        """
        if self.batch is None:
            keys = np.concatenate([part.keys for part in self.parts])
            states = States.concatenate([part.states for part in self.parts])
            self.batch = Batch(keys, states, self.parts[0].request.output)
        return self.batch
