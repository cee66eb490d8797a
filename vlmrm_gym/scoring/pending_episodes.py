"""The states of one environment that wait to be scored."""

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rewards.base import ClipShape, Rewards
from vlmrm_gym.scoring.requests import Request
from vlmrm_gym.scoring.scorer import Keys, Output, Values, transition_keys
from vlmrm_gym.scoring.select import EpisodeClips, Indices, SparseScoring, interpolate
from vlmrm_gym.states import SceneChange, StateList, States


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
    """bool (T,): False where the values are interpolated, or held."""

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(eq=False)
class _Chunk:
    """T successive transitions of an episode."""

    offsets: Rewards
    """float32 (T,), to be added to the rewards."""
    exact: NDArray[np.bool_]
    """bool (T,): False where an earlier reward is held, or rewards are interpolated."""
    request: Request
    """Of the states that are scored."""
    chosen: Indices | None
    """The states that are scored; None: all are."""
    values: Values | None = None
    """None before the states are scored."""

    def collect(self) -> None:
        """Take the values of the request."""
        values = self.request.values
        self.values = values if self.chosen is None else interpolate(self.chosen, values)


@dataclass
class _Episode:
    number: int
    chunks: deque[_Chunk] = field(default_factory=deque)
    """Chunks not delivered yet."""
    length: int = 0
    """Of its chunks, and of those delivered."""
    ended: bool = False


class PendingEpisodes:
    """Turns the states of one environment into requests and delivers each reward once, oldest first.

    Chunks have at most `max_bytes` and `chunk_size` states; longer episodes are split. The environment has had
    `num_steps` transitions before, and its first episode here has the number `episode`.
    """

    def __init__(
        self,
        env_index: int,
        *,
        max_bytes: int,
        chunk_size: int,
        output: Output,
        clip: ClipShape,
        sparse: SparseScoring,
        num_steps: int = 0,
        episode: int = 0,
    ) -> None:
        self._sparse, self._clips, self._every = sparse, EpisodeClips(clip), clip.every
        self._output: Output = output
        self._env_index, self._num_steps = env_index, num_steps
        self._max_bytes, self._chunk_size = max_bytes, chunk_size
        self._episodes = deque([_Episode(episode)])
        self.unsubmitted: list[Request] = []
        """Requests to submit, oldest first, including failed ones. The caller clears it after submitting them."""
        self._newest: Request | None = None
        """The episode's newest request, if its rewards are ordered."""
        self._shape: tuple[int, ...] = ()
        self._begin_chunk()

    def _begin_chunk(self) -> None:
        self._states, self._offsets = StateList(), array("f")

    @property
    def nbytes(self) -> int:
        """Bytes of the states that have not been submitted."""
        return self._states.nbytes + self._offsets.itemsize * len(self._offsets)

    @property
    def num_episodes(self) -> int:
        """Episodes that have begun, with the current one."""
        return self._episodes[-1].number + 1

    def append(self, state: NDArray[Any], change: SceneChange | None, offset: float) -> None:
        """Add a transition: its next state, the scene change, and the offset of its reward."""
        self._shape = self._shape or state.shape
        if state.shape != self._shape:
            raise ValueError(f"`env` must render frames of one size. Received {state.shape} after {self._shape}.")
        self._states.append(state, change)
        self._offsets.append(offset)
        another = state.nbytes + self._offsets.itemsize
        if len(self._offsets) == self._chunk_size or self.nbytes + another > self._max_bytes:
            self.close_chunk()

    def end_episode(self) -> None:
        """End the current episode, unless it is empty."""
        self.close_chunk()
        self._clips.begin_episode()
        self._newest = None
        episode = self._episodes[-1]
        if not episode.length:
            return
        self._sparse.end_episode(episode.length)
        episode.ended = True
        if not episode.chunks:  # a flush has delivered everything
            self._episodes.pop()
        self._episodes.append(_Episode(episode.number + 1))

    def make_request(self, states: States, keys: Keys) -> Request:
        """A request of the next states of the episode, or of some of them."""
        request = Request(self._clips.extend(states), keys, self._output, self._newest)
        self._newest = request if self._output == "ordered" else None
        return request

    def close_chunk(self) -> None:
        """Make a request of the episode's states so far."""
        count = len(self._offsets)
        if not count:
            return
        states, offsets, episode = self._states.states(), np.array(self._offsets, dtype=np.float32), self._episodes[-1]
        self._begin_chunk()
        keys, chosen = transition_keys(self._env_index, np.arange(self._num_steps, self._num_steps + count)), None
        exact = (episode.length + np.arange(count)) % self._every == 0
        if self._sparse.every > 1:
            chosen = self._sparse.choose(count)
            states, keys, exact = states[chosen], keys[chosen], np.isin(np.arange(count), chosen)
        request = self.make_request(states, keys)
        episode.chunks.append(_Chunk(offsets, exact, request, chosen))
        episode.length += count
        self._num_steps += count
        self.unsubmitted.append(request)

    def collect(self, *, keep_newest: int) -> BaseException | None:
        """Collect what has arrived; block on all episodes but the `keep_newest` newest.

        Returns the error of a failed request, which is then in `unsubmitted` again, or None.
        """
        for number, episode in enumerate(self._episodes):
            wait = number < len(self._episodes) - keep_newest
            for chunk in episode.chunks:
                request = chunk.request
                if chunk.values is None and (wait or request.done()) and request not in self.unsubmitted:
                    if error := request.error():
                        later = [one.request for one in episode.chunks if one.request.after is not None]
                        self.unsubmitted += [request, *(one for one in later if one.isolate and one is not request)]
                        return error
                    chunk.collect()
        return None

    def peek_episode(self) -> Scored | None:
        """The oldest episode if it has ended and is collected, else None."""
        episode = self._episodes[0]
        return _join([episode]) if episode.ended else None

    def peek_all(self) -> Scored | None:
        """All that has been submitted, oldest first, if it is collected; None if it is not, or nothing has been."""
        return _join(self._episodes)

    def drop(self, count: int) -> None:
        """Drop the oldest transitions, as returned by `peek_episode` or `peek_all`."""
        while count:
            episode = self._episodes[0]
            count -= len(episode.chunks.popleft().offsets)
            if episode.ended and not episode.chunks:
                self._episodes.popleft()


def _join(episodes: Iterable[_Episode]) -> Scored | None:
    """The chunks of episodes, one after the other; None if one is not collected, or there is none."""
    numbers, chunks = list[int](), list[_Chunk]()
    for episode in episodes:
        for chunk in episode.chunks:
            numbers.append(episode.number)
            chunks.append(chunk)
    values = [chunk.values for chunk in chunks if chunk.values is not None]
    if not chunks or len(values) < len(chunks):
        return None
    offsets, exact = (np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("offsets", "exact"))
    return Scored(numbers[0], np.concatenate(values), offsets, exact)
