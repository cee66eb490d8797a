"""The states of one environment that wait to be scored."""

import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rendering import SceneChange, States
from vlmrm_gym.rewards.base import ClipShape, Rewards
from vlmrm_gym.scoring.clips import EpisodeClips
from vlmrm_gym.scoring.random_views import RandomViews
from vlmrm_gym.scoring.requests import Request
from vlmrm_gym.scoring.scorer import Keys, Output, Values, transition_keys
from vlmrm_gym.scoring.sparse import MakeRewards, SparseChunk, SparseScoring


@dataclass(frozen=True, eq=False)
class Scored:
    """What was made of successive transitions of an environment."""

    episode: int
    """Of the first of them, from 0."""
    values: Values
    """Rewards, float32 (T,), or features, float32 (T, V, D)."""
    offsets: Rewards
    """float32 (T,), to be added to the rewards."""
    exact: NDArray[np.bool_]
    """bool (T,): False where the values are interpolated."""

    def __len__(self) -> int:
        return len(self.offsets)


class _Chunk:
    """Successive transitions of an episode.

    Args:
        states: T states.
        keys: int64 (T,).
        offsets: float32 (T,), to add to the rewards.
        output: What is made of the states.
        sparse: Chooses states; None: all are scored.
    """

    def __init__(
        self, states: States, keys: Keys, offsets: Rewards, output: Output, sparse: SparseChunk | None
    ) -> None:
        self.offsets, self._sparse = offsets, sparse
        self.scored: tuple[Values, Rewards, NDArray[np.bool_]] | None = None
        """Values, offsets, and where the values are exact; None before all that is wanted is scored."""
        wanted = (sparse and sparse.wanted()) or (states, keys)
        self.request = Request(*wanted, output, sparse.nbytes if sparse else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of the states that are kept while no request is in the queue."""
        return 0 if self._sparse is None or self.scored is not None or self.request.in_queue else self._sparse.nbytes

    def add_values(self, make_rewards: MakeRewards) -> bool:
        """Take the values of the request. Returns whether there is another request."""
        values = self.request.values
        if self._sparse is None:
            self.scored = values, self.offsets, np.full(len(values), True)
            return False
        self._sparse.add(values, make_rewards)
        if (wanted := self._sparse.wanted()) is None:
            values, exact = self._sparse.result()
            self.scored = values, self.offsets, exact
            return False
        self.request = Request(*wanted, self.request.output, self._sparse.nbytes)
        return True


@dataclass
class _Episode:
    number: int
    scored: list[tuple[Values, Rewards, NDArray[np.bool_]]] = field(default_factory=list)
    """Of its oldest transitions: values and offsets of each chunk, and where the values are exact."""
    chunks: deque[_Chunk] = field(default_factory=deque)
    """Chunks not collected yet."""
    length: int = 0
    """Of its chunks, and of those delivered."""
    begun: bool = False
    ended: bool = False


class PendingEpisodes:
    """Turns the states of one environment into requests and delivers each reward once, oldest first.

    Args:
        env_index: Index of the environment in its vector; part of the keys.
        max_bytes: Maximum memory of a chunk; longer episodes are split.
        chunk_size: Maximum number of states in a chunk; None: no limit.
        random_views: Draws the view of each state; None: all of its views are scored.
        output: What is made of the states.
        clip: What the reward of a state is of.
        sparse: Which states are scored; None: all.
        num_steps: Transitions that the environment has had.
        episode: Number of the first episode.
    """

    def __init__(
        self,
        env_index: int,
        max_bytes: int,
        chunk_size: int | None = None,
        random_views: RandomViews | None = None,
        output: Output = "rewards",
        clip: ClipShape | None = None,
        sparse: SparseScoring | None = None,
        *,
        num_steps: int = 0,
        episode: int = 0,
    ) -> None:
        self._sparse = sparse
        self.clips = EpisodeClips(clip or ClipShape())
        self._output: Output = output
        self._env_index, self._num_steps, self._random_views = env_index, num_steps, random_views
        self._max_bytes, self._chunk_size = max_bytes, chunk_size or sys.maxsize
        self._episodes = deque([_Episode(episode)])
        self.unsubmitted: list[Request] = []
        """Requests to submit, oldest first, including failed ones. The caller clears it after submitting them."""
        self._states: NDArray[Any] | None = None
        self._offsets: Rewards = np.empty(0, dtype=np.float32)
        self._changes: list[SceneChange | None] = []
        """One per state; empty while no scene has changed."""
        self._changes_nbytes = 0
        self._length = self._usual_length = 0
        self._shape: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the states that are not in a request yet."""
        return self._offsets.nbytes + (0 if self._states is None else self._states.nbytes) + self._changes_nbytes

    @property
    def num_episodes(self) -> int:
        """Episodes that have begun, with the current one."""
        return self._episodes[-1].number + 1

    @property
    def kept_nbytes(self) -> int:
        """Bytes of the states that may be scored in another round and are not in the queue."""
        return sum(chunk.nbytes for episode in self._episodes for chunk in episode.chunks)

    def append(self, state: NDArray[Any], change: SceneChange | None, offset: float) -> None:
        """Add a transition: its next state, the scene change, and the offset of its reward.

        Raises:
            ValueError: The state's shape differs from earlier ones.
        """
        self._shape = self._shape or state.shape
        if state.shape != self._shape:
            raise ValueError(f"`env` must render frames of one size. Received {state.shape} after {self._shape}.")
        if self._states is None:
            self._states = np.empty((0, *state.shape), dtype=state.dtype)
            self._chunk_size = max(1, min(self._chunk_size, self._max_bytes // (state.nbytes + self._offsets.itemsize)))
        if self._length == len(self._offsets):
            self._resize(max(self._usual_length, self._length + max(16, self._length // 8)))
        self._states[self._length], self._offsets[self._length] = state, offset
        if change is not None or self._changes:
            self._append_change(change)
        self._length += 1
        self._episodes[-1].begun = True
        if self._length == self._chunk_size or self.nbytes > self._max_bytes:
            self.close_chunk()

    def end_episode(self) -> None:
        """End the current episode, unless it is empty."""
        self.close_chunk()
        self.clips.begin_episode()
        episode = self._episodes[-1]
        if not episode.begun:
            return
        if self._sparse is not None:
            self._sparse.end_episode(episode.length)
        if episode.chunks or episode.scored:
            episode.ended = True
        else:  # a flush has delivered everything
            self._episodes.pop()
        self._episodes.append(_Episode(episode.number + 1))

    def close_chunk(self) -> None:
        """Make a request of the episode's states so far."""
        if self._length:
            assert self._states is not None
            self._usual_length = self._length
            self._resize(self._length)
            keys, offsets, episode = self._next_keys(), self._offsets, self._episodes[-1]
            states, sparse = States(self._states, self._changes or None), None
            if self._sparse is not None:
                sparse = SparseChunk(states, keys, self._sparse, self._random_views)
            elif self._random_views is not None:
                states = replace(states, views=self._random_views(keys))
            chunk = _Chunk(self.clips.extend(states), keys, offsets, self._output, sparse)
            episode.chunks.append(chunk)
            episode.length += len(offsets)
            self.unsubmitted.append(chunk.request)
            self._states, self._offsets, self._length = None, np.empty(0, dtype=np.float32), 0
            self._changes, self._changes_nbytes = [], 0

    def collect(self, *, keep_newest: int, make_rewards: MakeRewards) -> BaseException | None:
        """Collect what has arrived; block on all episodes but the `keep_newest` newest.

        A chunk of which more states are to be scored has another request in `unsubmitted`: submit it, and collect
        again.

        Args:
            keep_newest: Number of episodes.
            make_rewards: Makes rewards of what is scored.

        Returns:
            The error of a failed request, which is then in `unsubmitted` again, or None.
        """
        for number, episode in enumerate(self._episodes):
            wait = number < len(self._episodes) - keep_newest
            for chunk in tuple(episode.chunks):
                request = chunk.request
                if chunk.scored is None and (wait or request.done()) and request not in self.unsubmitted:
                    if error := request.error():
                        self.unsubmitted.append(request)
                        return error
                    if chunk.add_values(make_rewards):
                        self.unsubmitted.append(chunk.request)
                if chunk.scored is not None and chunk is episode.chunks[0]:
                    episode.scored.append(chunk.scored)
                    episode.chunks.popleft()
        return None

    def peek_episode(self) -> Scored | None:
        """The oldest episode if it has ended and is collected, else None."""
        episode = self._episodes[0]
        return _join([episode]) if episode.ended and not episode.chunks else None

    def peek_all(self) -> Scored | None:
        """All that is collected, oldest first; None if nothing is."""
        return _join(self._episodes)

    def _next_keys(self) -> Keys:
        first, self._num_steps = self._num_steps, self._num_steps + self._length
        return transition_keys(self._env_index, np.arange(first, self._num_steps))

    def _append_change(self, change: SceneChange | None) -> None:
        if not self._changes:
            self._changes = [None] * self._length
        before = self._changes[-1] if self._changes else None
        self._changes.append(change)
        if change is not None and change is not before:
            shared = {id(array) for array in before.arrays()} if before is not None else set()
            self._changes_nbytes += sum(array.nbytes for array in change.arrays() if id(array) not in shared)

    def drop(self, count: int) -> None:
        """Drop the oldest transitions, as returned by `peek_episode` or `peek_all`."""
        while count:
            episode = self._episodes[0]
            count -= len(episode.scored.pop(0)[0])
            if episode.ended and not episode.chunks and not episode.scored:
                self._episodes.popleft()

    def _resize(self, length: int) -> None:
        length = min(length, self._chunk_size)
        if length != len(self._offsets):
            assert self._states is not None
            states, offsets = self._states, self._offsets
            self._states = np.empty((length, *states.shape[1:]), dtype=states.dtype)
            self._offsets = np.empty(length, dtype=np.float32)
            self._states[: self._length], self._offsets[: self._length] = (
                states[: self._length],
                offsets[: self._length],
            )


def _join(episodes: Iterable[_Episode]) -> Scored | None:
    """What is collected of episodes, one after the other."""
    collected = [(episode.number, *scored) for episode in episodes for scored in episode.scored]
    if not collected:
        return None
    numbers, *columns = zip(*collected, strict=True)
    return Scored(numbers[0], *map(np.concatenate, columns))
