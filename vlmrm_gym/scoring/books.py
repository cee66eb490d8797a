"""The books of the episodes of one environment: states that wait, their features, and the log."""

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.data.episode_log import EpisodeLog
from vlmrm_gym.data.trajectory import COLUMNS, Trajectory
from vlmrm_gym.rewards.model import ClipShape, Rewards
from vlmrm_gym.scoring.requests import EpisodeMemory, Request, transition_keys
from vlmrm_gym.scoring.select import EpisodeClips, Indices, choose_every, interpolate
from vlmrm_gym.states import SceneChange, StateList, States


def _empty_columns() -> Mapping[str, "array[Any]"]:
    return {name: array(np.dtype(dtype).char) for name, dtype in COLUMNS.items()}


@dataclass(eq=False)
class BookedEpisode:
    """An episode, or its part so far."""

    number: int
    start: int
    """The `vlm_step_index` of its first transition."""
    memory: EpisodeMemory | None
    """What an ordered model remembers."""
    length: int = 0
    """Transitions in chunks."""
    carry: Any = None
    """A head of sequences, and what it carries from the delivered transitions to the next one; None: nothing."""
    states: list[States] = field(default_factory=list)
    """Those of each chunk, if there is a log; as the next two."""
    columns: Mapping[str, "array[Any]"] = field(default_factory=_empty_columns)
    """The columns of its `Trajectory`, a number for each step. A trajectory shares their memory."""
    nbytes: int = 0
    """Memory that the log counts."""

    def column(self, name: str) -> Any:
        """A column as an array that shares its memory. While there is one, no step can be added."""
        return np.frombuffer(self.columns[name], COLUMNS[name])


@dataclass(eq=False)
class Chunk:
    """T successive transitions of an episode."""

    episode: BookedEpisode
    start: int
    """The number of the first one in the episode."""
    offsets: Rewards
    """float32 (T,), to be added to the rewards of the model."""
    exact: NDArray[np.bool_]
    """bool (T,): False where an earlier reward is held, or rewards are interpolated."""
    request: Request
    """Of the states that are scored."""
    chosen: Indices | None
    """The states that are scored, until values are interpolated; None: all are."""
    first: Request | None = None
    """Of the state before the first action, if the episode begins here and the head sees it."""
    features: Any = None
    """float32 (N, V, D) of the N states that are scored; None before they are."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def requests(self) -> list[Request]:
        """All that has to be encoded, in order."""
        return [self.request] if self.first is None else [self.first, self.request]


@dataclass(frozen=True, kw_only=True)
class BookRules:
    """How the books of all environments of a vector are kept."""

    max_bytes: int
    """Memory of the states of a chunk, at most."""
    chunk_size: int
    """States of a chunk, at most."""
    clips: Sequence[ClipShape]
    """Of each encoder."""
    sees_first: bool
    """Whether the head sees the state before the first action."""
    score_every: int
    """States of a chunk from one that is scored to the next."""
    ordered: bool
    """Whether the model encodes the states of an episode in order."""
    keep_features: bool
    """Whether features are delivered: then these are interpolated between the scored states, else the rewards."""
    log: EpisodeLog | None
    """Remembers episodes; None: nothing does."""


class EnvironmentBooks:
    """Turns the states of one environment into requests, and delivers each reward once, oldest first.

    The environment has had `num_steps` transitions before, and its first episode here has the number `episode`.
    """

    def __init__(self, env_index: int, rules: BookRules, *, num_steps: int = 0, episode: int = 0) -> None:
        self._env_index, self._rules = env_index, rules
        self._clips = EpisodeClips(rules.clips)
        self.num_steps = self.num_delivered = num_steps
        """Transitions so far, and how many of them have their rewards."""
        self.unsubmitted: list[Request] = []
        """Requests to submit, oldest first, including failed ones. The caller clears it after submitting them."""
        self._shape: tuple[int, ...] = ()
        self._waiting: deque[Chunk] = deque()
        """Chunks that are not delivered, of all episodes, oldest first."""
        self._begin_episode(episode)
        self._begin_chunk()

    def _begin_chunk(self) -> None:
        self._states, self._offsets = StateList(), array("f")

    def _begin_episode(self, number: int) -> None:
        memory: EpisodeMemory | None = {self._key(self.num_steps): None} if self._rules.ordered else None
        self._episode = BookedEpisode(number, self.num_steps, memory)
        self._clips.begin_episode()
        self._first: States | None = None
        """The state before the first action of the current episode, until it is in a chunk, if the head sees it."""

    def _key(self, step_index: int) -> int:
        return int(transition_keys(self._env_index, step_index))

    def begin(self, state: NDArray[Any], change: SceneChange | None) -> None:
        """Take the state before the first action of the current episode, which has no transition yet."""
        first = States(state[None].copy(), None if change is None else [change])
        self._clips.begin_episode(first)
        self._first = self._clips.first(first) if self._rules.sees_first else None

    @property
    def nbytes(self) -> int:
        """Bytes of the states that have not been submitted."""
        return self._states.nbytes + self._offsets.itemsize * len(self._offsets)

    @property
    def num_episodes(self) -> int:
        """Episodes that have begun, with the current one."""
        return self._episode.number + 1

    def append(
        self, state: NDArray[Any], change: SceneChange | None, offset: float, task_reward: float, success: float
    ) -> None:
        """Add a transition: its next state and scene change, and what is added to its reward.

        The environment's own reward and success are for the log. A ValueError says that frames have several sizes, or
        that the log has no room for the episode.
        """
        self._shape = self._shape or state.shape
        if state.shape != self._shape:
            raise ValueError(f"`env` must render frames of one size. Received {state.shape} after {self._shape}.")
        before = self._states.nbytes
        self._states.append(state, change)
        self._offsets.append(offset)
        self.num_steps += 1
        log, episode = self._rules.log, self._episode
        if log is not None:
            for name, value in zip(COLUMNS, (np.nan, 0, task_reward, success), strict=True):
                episode.columns[name].append(value)
            grown = self._states.nbytes - before + 32
            episode.nbytes += grown
            log.grow(grown)
            if episode.nbytes > log.max_bytes:
                steps = self.num_steps - episode.start
                raise ValueError(
                    f"`max_bytes` of an episode log must be enough for an episode. Received {log.max_bytes:,}, but "
                    f"after {steps} steps an episode of environment {self._env_index} has {episode.nbytes:,}."
                )
        another = state.nbytes + self._offsets.itemsize
        if len(self._offsets) == self._rules.chunk_size or self.nbytes + another > self._rules.max_bytes:
            self.close_chunk()

    def end_episode(self) -> None:
        """End the current episode, unless it is empty."""
        self.close_chunk()
        episode = self._episode
        if not episode.length:
            return
        if self._rules.log is not None:
            trajectory = Trajectory(
                states=States.concatenate(episode.states),
                **{name: episode.column(name) for name in COLUMNS},
                env_index=self._env_index,
                episode_index=episode.number,
                start=episode.start,
            )
            episode.states.clear()  # the trajectory has them
            self.forget()
            self._rules.log.add(trajectory)
        self._begin_episode(episode.number + 1)

    def forget(self) -> None:
        """Drop the episode in progress from what the log counts."""
        if self._rules.log is not None:
            self._rules.log.grow(-self._episode.nbytes)
            self._episode.nbytes = 0

    def close_chunk(self) -> None:
        """Make a request of the episode's states so far."""
        count, rules, episode = len(self._offsets), self._rules, self._episode
        if not count:
            return
        states, offsets = self._states.states(), np.array(self._offsets, dtype=np.float32)
        self._begin_chunk()
        numbers = episode.length + np.arange(count)
        keys, chosen, scored = transition_keys(self._env_index, episode.start + numbers), None, states
        exact = np.logical_and.reduce([numbers % shape.every == 0 for shape in rules.clips])
        if rules.score_every > 1:
            chosen = choose_every(count, rules.score_every)
            scored, keys, exact = states[chosen], keys[chosen], np.isin(np.arange(count), chosen)
        request = Request(self._clips.extend(scored), keys, episode.memory)
        chunk = Chunk(episode, episode.length, offsets, exact, request, chosen)
        if self._first is not None:
            memory: EpisodeMemory | None = {int(keys[0]): None} if rules.ordered else None
            chunk.first, self._first = Request(self._first, keys[:1], memory), None
        self._waiting.append(chunk)
        if rules.log is not None:
            episode.states.append(states)
        episode.length += count
        self.unsubmitted += chunk.requests

    def collect(self, *, keep_newest: int) -> BaseException | None:
        """Collect what has arrived; block on all episodes but the `keep_newest` newest.

        Returns the error of a failed request, which is then in `unsubmitted` again, or None.
        """
        for chunk in self._waiting:
            requests, wait = chunk.requests, chunk.episode.number <= self._episode.number - keep_newest
            is_there = wait or all(request.done() for request in requests)
            if chunk.features is not None or not is_there or any(one in self.unsubmitted for one in requests):
                continue
            for request in requests:
                if error := request.error():
                    self.unsubmitted += [request, *self._after(chunk, request)]
                    return error
            chunk.features = chunk.request.features
            if self._rules.keep_features and chunk.chosen is not None:
                chunk.features, chunk.chosen = interpolate(chunk.chosen, chunk.features), None
        return None

    def _after(self, chunk: Chunk, failed: Request) -> list[Request]:
        """Requests of the states after those of a failed one, which have failed with it if the model is ordered."""
        if not self._rules.ordered or failed is chunk.first:
            return []
        requests = [one.request for one in self._waiting if one.episode is chunk.episode and one.start > chunk.start]
        return [request for request in requests if request.error()]

    def scored_episode(self) -> Sequence[Chunk]:
        """The chunks of the oldest episode if it has ended and all are collected, else none."""
        oldest = self._waiting[0].episode if self._waiting else self._episode
        return [] if oldest is self._episode else _if_scored([one for one in self._waiting if one.episode is oldest])

    def scored_so_far(self) -> Sequence[Chunk]:
        """All chunks, oldest first, if all are collected, else none."""
        return _if_scored(list(self._waiting))

    def deliver(
        self, chunks: Sequence[Chunk], rewards: Rewards, carries: Mapping[BookedEpisode, Any], version: int
    ) -> None:
        """Drop the chunks of `scored_episode` or `scored_so_far`, whose rewards (T,) are returned."""
        start = 0
        for chunk in chunks:
            episode, stop = chunk.episode, start + len(chunk)
            if self._rules.log is not None:
                steps = slice(chunk.start, chunk.start + len(chunk))
                episode.column("rewards")[steps], episode.column("versions")[steps] = rewards[start:stop], version
            start = stop
            self._waiting.popleft()
            episode.carry = carries.get(episode)
            self.num_delivered += len(chunk)
            if episode.memory is not None:  # states before these are not encoded again
                for key in [key for key in list(episode.memory) if key < self._key(self.num_delivered)]:
                    del episode.memory[key]


def _if_scored(chunks: Sequence[Chunk]) -> Sequence[Chunk]:
    return chunks if all(chunk.features is not None for chunk in chunks) else []
