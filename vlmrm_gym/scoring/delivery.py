"""The rewards of a vector environment: scores its states, and delivers each reward once."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.episode_log import EpisodeLog, EpisodeRecorder
from vlmrm_gym.infos import read_success
from vlmrm_gym.rewards.base import ClipShape, Rewards
from vlmrm_gym.rewards.heads import NewestHead, check_fingerprint
from vlmrm_gym.scoring.pending_episodes import PendingEpisodes, Scored
from vlmrm_gym.scoring.queue import ScoringQueue
from vlmrm_gym.scoring.requests import Request
from vlmrm_gym.scoring.scorer import Output, transition_keys
from vlmrm_gym.scoring.select import SparseScoring
from vlmrm_gym.states import States

Mask = NDArray[np.bool_]


class RewardDelivery:
    """Scores the states of a vector environment, at once or when episodes end.

    `max_bytes` limits the memory of states that have not been submitted to the queue. With `overlap`, finished episodes
    are scored in the background.
    """

    def __init__(
        self,
        queue: ScoringQueue,
        num_envs: int,
        max_bytes: int,
        *,
        overlap: bool,
        log: EpisodeLog | None,
        sparse: SparseScoring,
    ) -> None:
        self._queue, self._sparse, features = queue, sparse, queue.info.features
        self._recorder = None if log is None else EpisodeRecorder(log, num_envs)
        self.head = None if features is None else NewestHead(features.head, features.fingerprint)
        """Makes the rewards, of features that are scored and returned; None: rewards are scored."""
        self._output: Output = queue.output if features is None else "features"
        self._num_stepped, self._num_delivered = np.zeros((2, num_envs), dtype=np.int64)
        """Transitions of each environment, and how many of them have their rewards."""
        # With overlap, do not block on the two newest episodes: the one that has just ended, and the next one.
        self._num_nonblocking_episodes = 2 if overlap else 0
        self._failure: BaseException | None = None
        self.is_interrupted = False
        """Whether an exception has left what is kept here half changed: then only `reset` may be called, for all."""
        self._make_pending = partial(
            PendingEpisodes,
            max_bytes=max(1, max_bytes // num_envs),
            chunk_size=queue.batch_size * sparse.every if overlap else sys.maxsize,
            output=self._output,
            clip=queue.info.clip,
            sparse=sparse,
        )
        self._pending = [self._make_pending(i) for i in range(num_envs)]

    @property
    def nbytes(self) -> int:
        """Memory of all states without rewards, in bytes."""
        return self._queue.pending_bytes + sum(pending.nbytes for pending in self._pending)

    def follow(self, head: NewestHead) -> None:
        """Make rewards with this head from now on."""
        if self.head is None:
            raise ValueError("`head` needs environments with features. Make them with return_features=True.")
        check_fingerprint(head, self.head.fingerprint)
        self.head = head

    def raise_failure(self) -> None:
        """Raise the exception of scoring that was kept, if any."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change what is kept here. If the block raises, as a signal's handler may anywhere, `reset` makes it anew."""
        self.is_interrupted = True
        yield
        self.is_interrupted = False

    def reset(self, mask: Mask) -> None:
        """Call this at every reset of the environments in a mask: it ends unfinished episodes."""
        if self.is_interrupted:
            self._begin_anew()
        with self._changing():
            self._end_episodes(mask)

    def _begin_anew(self) -> None:
        """Forget the states that have no rewards. What is delivered next says that these rewards will not come."""
        self._num_stepped += 1  # the step that was interrupted may have been recorded
        self._num_delivered = self._num_stepped.copy()
        self._pending = [
            self._make_pending(i, num_steps=count, episode=self._pending[i].num_episodes)
            for i, count in enumerate(self._num_stepped.tolist())
        ]
        self._failure, self.is_interrupted = None, False

    def _end_episodes(self, mask: Mask) -> None:
        """End the unfinished episodes of some environments."""
        for i in np.flatnonzero(mask).tolist():
            self._pending[i].end_episode()
            if self._recorder is not None:
                self._recorder.end_episode(i)

    def score(
        self, states: States, stepped: Mask, ends: Mask, offsets: NDArray[np.float64], infos: Mapping[str, Any]
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Score the states of a step at once; the arguments are those of `append`.

        Returns rewards, float64 (num_envs,), 0 where there was no transition; and infos with features, if there is a
        head.
        """
        with self._changing():
            rewards, own_infos = np.zeros(len(stepped)), {}
            indices, steps = np.flatnonzero(stepped), self._num_stepped.copy()
            keys = transition_keys(indices, steps[indices])
            self._record(states, stepped, infos)
            self._num_stepped += stepped
            if not len(indices):
                return rewards, own_infos
            chosen = states[stepped]
            if self._output == "ordered" or self._queue.info.clip != ClipShape():
                requests = [
                    self._pending[i].make_request(chosen[k : k + 1], keys[k : k + 1]) for k, i in enumerate(indices)
                ]
            else:
                requests = [Request(chosen, keys, self._output)]
            self._end_episodes(stepped & ends)
            values = self._queue.score(*requests)
            made, own = values, offsets[stepped].astype(np.float32)
            if self.head is not None:
                made, features, weighted = self.head(made), *np.full((2, len(stepped)), None, dtype=object)
                for i, of_state, offset in zip(indices, values, own, strict=True):
                    features[i], weighted[i] = of_state[None], offset[None]
                own_infos: dict[str, Any] = {"vlm_features": features, "vlm_task_rewards": weighted}
                own_infos["vlm_reward_version"] = np.full(len(stepped), self.head.version)
                own_infos |= {f"_{name}": stepped.copy() for name in own_infos}
            rewards[stepped] = made + own
            if self._recorder is not None:
                for i, reward in zip(indices.tolist(), made + own, strict=True):
                    self._recorder.add_rewards(i, int(steps[i]), np.array([reward]), self._version)
            return rewards, own_infos

    def append(
        self, states: States, stepped: Mask, ends: Mask, offsets: NDArray[np.float64], infos: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Add the transitions of a step, to be scored later: the state that each environment is in now.

        `stepped` and `ends`, bool (num_envs,), say where there was a transition, and where an episode has ended;
        `offsets`, float64 (num_envs,), are added to the rewards. Returns the infos `vlm_step_index`, and those of
        `_deliver` for finished episodes. An exception of scoring is kept for the next call.
        """
        steps = {"vlm_step_index": self._num_stepped.copy(), "_vlm_step_index": stepped.copy()}
        with self._changing():
            self._record(states, stepped, infos)
            self._num_stepped += stepped
            for i in np.flatnonzero(stepped).tolist():
                change = states.changes[i] if states.changes else None
                self._pending[i].append(states.rows[i], change, offsets[i])
            self._end_episodes(stepped & ends)
        return steps | self.finished_episodes()

    def _record(self, states: States, stepped: Mask, infos: Mapping[str, Any]) -> None:
        """Remember the states of a step, before they are counted."""
        if self._recorder is None:
            return
        success = read_success(infos, len(stepped))
        for i in np.flatnonzero(stepped).tolist():
            change = states.changes[i] if states.changes else None
            said = float(infos["task_reward"][i]), float(success[i])
            self._recorder.add(i, int(self._num_stepped[i]), states.rows[i], change, *said)

    def finished_episodes(self) -> dict[str, Any]:
        """The infos of `_deliver` for finished episodes. An exception of scoring is kept for the next call."""
        with self._changing():
            self._collect(keep_newest=self._num_nonblocking_episodes)
            return self._deliver(self._look(PendingEpisodes.peek_episode))

    def flush(self) -> dict[str, Any]:
        """Wait for all rewards: infos with those of unfinished episodes too.

        After an exception of scoring, rewards that have arrived are kept for the next call.
        """
        with self._changing():
            for pending in self._pending:
                pending.close_chunk()
            self._collect(keep_newest=0)
            found = self._look(PendingEpisodes.peek_all) if self._failure is None else {}
        self.raise_failure()
        with self._changing():
            return self._deliver(found)

    def _collect(self, *, keep_newest: int) -> None:
        """Submit all closed chunks, and collect what has been scored of them."""
        self._queue.submit(*(request for pending in self._pending for request in pending.unsubmitted))
        for pending in self._pending:
            pending.unsubmitted.clear()
        for pending in self._pending:
            self._failure = pending.collect(keep_newest=keep_newest) or self._failure

    def _look(self, peek: Callable[[PendingEpisodes], Scored | None]) -> dict[int, tuple[Scored, Rewards]]:
        """What `peek` finds of each environment, and its rewards. An exception of the head is kept."""
        found: dict[int, tuple[Scored, Rewards]] = {}
        for i, pending in enumerate(self._pending):
            if (scored := peek(pending)) is not None:
                try:
                    made = scored.values if self.head is None else self.head(scored.values, f"environment {i}")
                except ValueError as error:
                    self._failure = error
                else:
                    found[i] = scored, made + scored.offsets
        return found

    def _deliver(self, found: Mapping[int, tuple[Scored, Rewards]]) -> dict[str, Any]:
        """Infos with what `_look` has found, which is then dropped."""
        num_envs = len(self._pending)
        arrived = np.zeros(num_envs, dtype=np.bool_)
        rewards, features, offsets, exact = np.full((4, num_envs), None, dtype=object)
        episodes, start = np.zeros(num_envs, dtype=np.int64), self._num_delivered.copy()
        for i, (scored, own_rewards) in found.items():
            arrived[i], episodes[i], rewards[i], exact[i] = True, scored.episode, own_rewards, scored.exact
            features[i], offsets[i] = scored.values, scored.offsets
            if self._recorder is not None:
                self._recorder.add_rewards(i, int(start[i]), own_rewards, self._version)
            self._pending[i].drop(len(scored))
            self._num_delivered[i] += len(scored)
        infos = {"vlm_rewards": rewards, "vlm_episode_index": episodes, "vlm_reward_start": start}
        if self._sparse.every > 1 or self._queue.info.clip.every > 1:
            infos["vlm_scored"] = exact
        if self.head is not None:
            infos |= {"vlm_features": features, "vlm_task_rewards": offsets}
            infos["vlm_reward_version"] = np.full(num_envs, self.head.version)
        return {**infos, **{f"_{name}": arrived.copy() for name in infos}}

    @property
    def _version(self) -> int:
        return 0 if self.head is None else self.head.version
