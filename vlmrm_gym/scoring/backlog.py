"""What the transitions of one environment are still to be told: their rewards."""

import sys
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.scoring.interrupts import interrupts_later
from vlmrm_gym.scoring.queue import Request, ScoringQueue
from vlmrm_gym.scoring.scorer import Rewards


@dataclass
class _Episode:
    number: int
    scored: list[Rewards] = field(default_factory=list)
    """In the order of the transitions; pieces follow, and what is not cut yet."""
    pieces: deque[tuple[Request, Rewards]] = field(default_factory=deque)
    """Not settled yet, each with what is added to its rewards."""
    begun: bool = False
    ended: bool = False


class Backlog:
    """Keeps one environment's states, has them scored, and gives every transition its reward once, oldest first.

    Args:
        queue: Where states are scored.
        max_bytes: The most memory for a piece: longer episodes are cut before they end.
        piece: The most states of a piece; None: any number.
    """

    def __init__(self, queue: ScoringQueue, max_bytes: int, piece: int | None = None) -> None:
        self._queue, self._max_bytes, self._piece = queue, max_bytes, piece or sys.maxsize
        self._episodes = deque([_Episode(0)])
        self._unsubmitted: deque[Request] = deque()
        self._states: NDArray[Any] | None = None
        self._added: Rewards = np.empty(0, dtype=np.float32)
        self._length = self._usual_length = 0
        self._shape: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Memory of the states that are not cut into pieces yet, in bytes."""
        return self._added.nbytes + (0 if self._states is None else self._states.nbytes)

    def append(self, state: NDArray[Any], added: float) -> None:
        """One more transition: the state that it led to, and what is added to its reward.

        Raises:
            ValueError: The state has another shape than those before.
        """
        self._shape = self._shape or state.shape
        if state.shape != self._shape:
            raise ValueError(f"`env` must render frames of one size. Received {state.shape} after {self._shape}.")
        if self._states is None:
            self._states = np.empty((0, *state.shape), dtype=state.dtype)
            self._piece = max(1, min(self._piece, self._max_bytes // (state.nbytes + self._added.itemsize)))
        if self._length == len(self._added):
            self._resize(max(self._usual_length, self._length + max(16, self._length // 8)))
        self._states[self._length], self._added[self._length] = state, added
        self._length += 1
        self._episodes[-1].begun = True
        if self._length == self._piece:
            self.cut()

    def end_episode(self) -> None:
        """No more transitions of this episode."""
        episode = self._episodes[-1]
        if not episode.begun:
            return
        self.cut()
        if episode.pieces or episode.scored:
            episode.ended = True
        else:  # a flush has told all of it
            self._episodes.pop()
        self._episodes.append(_Episode(episode.number + 1))

    def cut(self) -> None:
        """Make what there is of the episode a piece that can be submitted."""
        if self._length:
            assert self._states is not None
            self._usual_length = self._length
            self._resize(self._length)
            request = Request(self._states)
            self._episodes[-1].pieces.append((request, self._added))
            self._unsubmitted.append(request)
            self._states, self._added, self._length = None, np.empty(0, dtype=np.float32), 0

    def submit(self) -> None:
        """Have all pieces scored; those that failed, again. Blocks while too much is pending."""
        while self._unsubmitted:
            self._queue.submit(self._unsubmitted[0])
            self._unsubmitted.popleft()

    def settle(self, *, lag: int) -> None:
        """Take the rewards that have arrived, and wait for those of all episodes but the `lag` newest.

        Raises what went wrong with some of it. Nothing is lost by that; `submit` tries again.
        """
        for number, episode in enumerate(self._episodes):
            wait = number < len(self._episodes) - lag
            while episode.pieces and (wait or episode.pieces[0][0].done()):
                request, added = episode.pieces[0]
                error = request.error()
                with interrupts_later():
                    if error is None:
                        episode.scored.append(request.rewards + added)
                        episode.pieces.popleft()
                    elif request not in self._unsubmitted:
                        self._unsubmitted.append(request)
                if error is not None:
                    raise error

    def next_episode(self) -> tuple[int, Rewards] | None:
        """Number and rewards, float32 (T,), of the oldest episode, if it has ended and is settled."""
        episode = self._episodes[0]
        if not episode.ended or episode.pieces:
            return None
        self._episodes.popleft()
        return episode.number, np.concatenate(episode.scored)

    def everything(self) -> tuple[int, Rewards] | None:
        """All settled rewards, float32 (T,), oldest first, and the number of the episode that the first belongs to."""
        told = [(episode.number, rewards) for episode in self._episodes for rewards in episode.scored]
        while self._episodes[0].ended:
            self._episodes.popleft()
        self._episodes[0].scored.clear()
        return (told[0][0], np.concatenate([rewards for _, rewards in told])) if told else None

    def _resize(self, length: int) -> None:
        length = min(length, self._piece)
        if length != len(self._added):
            assert self._states is not None
            states, added = self._states, self._added
            self._states = np.empty((length, *states.shape[1:]), dtype=states.dtype)
            self._added = np.empty(length, dtype=np.float32)
            self._states[: self._length], self._added[: self._length] = states[: self._length], added[: self._length]
