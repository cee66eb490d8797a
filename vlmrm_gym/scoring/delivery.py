"""The rewards of environments: has their states scored, makes rewards of the features, and delivers each once."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.infos import read_success
from vlmrm_gym.rewards.current_head import PIECE_BYTES, CurrentHead, Paid, check_head
from vlmrm_gym.rewards.heads import TERM, Reports, SequenceHead
from vlmrm_gym.rewards.model import Rewards
from vlmrm_gym.scoring.books import BookedEpisode, BookRules, Chunk, EnvironmentBooks
from vlmrm_gym.scoring.local import DirectScorer
from vlmrm_gym.scoring.options import ScoringOptions
from vlmrm_gym.scoring.queue import ScoringQueue
from vlmrm_gym.scoring.select import interpolate
from vlmrm_gym.states import States

Mask = NDArray[np.bool_]


@dataclass(eq=False)
class Scored:
    """Successive transitions of an environment whose features have arrived."""

    chunks: Sequence[Chunk]
    rewards: Rewards = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    """float32 (T,), once they are made of the features."""
    reports: Reports = field(default_factory=dict)
    """See `Reports`."""
    carries: dict[BookedEpisode, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    def concatenate(self, name: str) -> NDArray[Any]:
        """An attribute of the chunks, one after the other."""
        arrays = [getattr(chunk, name) for chunk in self.chunks]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def pay(self, paid: Paid) -> None:
        """Take what a head of single states has made of the features, one after the other."""
        parts, start = [], 0
        for chunk in self.chunks:
            part = paid.part(slice(start, start := start + len(chunk.features)))
            if (chosen := chunk.chosen) is not None:
                reports = {key: interpolate(chosen, one) for key, one in part.reports.items()}
                part = Paid(interpolate(chosen, part.rewards), None, reports)
            parts.append(part)
        self._take(parts)

    def advance(self, head: CurrentHead, of: str) -> None:
        """Make the rewards with a head of sequences, from where it is in each episode."""
        parts = []
        for chunk in self.chunks:
            last_head, carry = self.carries.get(chunk.episode, chunk.episode.carry) or (head.head, None)
            carry = carry if last_head is head.head else None
            if carry is None and chunk.first is not None:
                carry = head.begin(chunk.first.features)
            parts.append(head.pay(chunk.features, carry, of))
            self.carries[chunk.episode] = head.head, parts[-1].carry
        self._take(parts)

    def _take(self, parts: Sequence[Paid]) -> None:
        self.rewards = np.concatenate([part.rewards for part in parts]) + self.concatenate("offsets")
        self.reports = {key: np.concatenate([part.reports[key] for part in parts]) for key in parts[0].reports}

    def reported(self, task_reward_weight: float) -> dict[str, Any]:
        """The reports as infos have them: "vlm_terms", a float32 (T,) for each name, and "vlm_success", bool (T,)."""
        found: dict[str, Any] = {}
        if terms := {key.removeprefix(TERM): one for key, one in self.reports.items() if key.startswith(TERM)}:
            own = {"task_reward": self.concatenate("offsets") / task_reward_weight} if task_reward_weight else {}
            found["vlm_terms"] = terms | own
        if "success" in self.reports:
            found["vlm_success"] = self.reports["success"]
        return found

    @property
    def terminates(self) -> bool:
        """Whether the last transition ends its episode."""
        return "terminate" in self.reports and bool(self.reports["terminate"][-1])


class RewardDelivery:
    """Has the states of environments scored, after every step or when episodes end, and delivers the rewards.

    The head is None if there is none yet. Where features are returned, the head may change.
    """

    def __init__(
        self, encoding: ScoringQueue | DirectScorer, head: Any, num_envs: int, options: ScoringOptions
    ) -> None:
        info = encoding.info
        self._encoding, self._task_reward_weight = encoding, options.task_reward_weight
        self.head, self.keeps_features = CurrentHead(head, info.fingerprint), options.return_features
        """Makes the rewards."""
        # With overlap, do not block on the two newest episodes: the one that has just ended, and the next one.
        self._num_nonblocking_episodes = 2 if options.overlap else 0
        self._failure: BaseException | None = None
        self.is_interrupted = False
        """True after an exception interrupted an update; only `reset` is allowed then, for all."""
        self._rules = BookRules(
            max_bytes=max(1, options.max_pending_bytes // 2 // num_envs),  # half is for states that were submitted
            chunk_size=encoding.batch_size * options.score_every if options.overlap else sys.maxsize,
            clips=info.clips,
            sees_first=isinstance(head, SequenceHead) and head.sees_first,
            score_every=options.score_every,
            ordered=info.ordered,
            keep_features=options.return_features,
            log=options.episode_log,
        )
        self._books = [EnvironmentBooks(i, self._rules) for i in range(num_envs)]
        self.sees_first = self._rules.sees_first or any(clip.is_prefix for clip in info.clips)
        """Whether states before the first action are needed: then call `begin`."""

    @property
    def nbytes(self) -> int:
        """Memory of all states without rewards, in bytes."""
        return self._encoding.pending_bytes + sum(books.nbytes for books in self._books)

    def follow(self, head: CurrentHead) -> None:
        """Make rewards with this head from now on."""
        if not self.keeps_features:
            raise ValueError("`head` needs environments with features. Make them with return_features=True.")
        if not isinstance(head, CurrentHead):
            rule = "`head` must be the one of other environments, which both follow then"
            raise TypeError(f"{rule}. Received {short_repr(head)}. To replace it: envs.head.replace(...).")
        check_head(head, self.head.fingerprint)
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
        """End unfinished episodes: call this at every reset of the environments in a mask."""
        if self.is_interrupted:  # what is delivered next says that rewards of the states so far will not come
            for i, old in enumerate(self._books):
                old.forget()
                # The step that was interrupted may have been recorded.
                self._books[i] = EnvironmentBooks(i, self._rules, num_steps=old.num_steps + 1, episode=old.num_episodes)
            self._failure = None
        self.end_episodes(mask)

    def begin(self, states: States, mask: Mask) -> None:
        """Take the states before the first action of the environments in a mask, which have just been reset."""
        with self._changing():
            for i in np.flatnonzero(mask).tolist():
                self._books[i].begin(states.rows[i], states.changes[i] if states.changes else None)

    def end_episodes(self, mask: Mask) -> None:
        """End the episodes of the environments in a mask."""
        with self._changing():
            for i in np.flatnonzero(mask).tolist():
                self._books[i].end_episode()

    def append(
        self, states: States, stepped: Mask, ends: Mask, offsets: NDArray[np.float64], infos: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Add the transitions of a step: the state that each environment is in now. Returns infos of their indices.

        `stepped` and `ends`, bool (num_envs,), say where there was a transition, and where an episode has ended;
        `offsets`, float64 (num_envs,), are added to the rewards.
        """
        steps = {"vlm_step_index": np.array([books.num_steps for books in self._books])}
        steps["_vlm_step_index"] = stepped.copy()
        with self._changing():
            success = None if self._rules.log is None else read_success(infos, len(stepped))
            for i in np.flatnonzero(stepped).tolist():
                change = states.changes[i] if states.changes else None
                logged = (0.0, 0.0) if success is None else (float(infos["task_reward"][i]), float(success[i]))
                self._books[i].append(states.rows[i], change, offsets[i], *logged)
            self.end_episodes(stepped & ends)
        return steps

    def score_now(self) -> Mapping[int, Scored]:
        """Wait for the rewards of all transitions: those of each environment. After an exception only `reset` helps."""
        with self._changing():
            arrived = self._score_so_far()
            self.raise_failure()
            return self._deliver(arrived)

    def finished_episodes(self) -> dict[str, Any]:
        """Return the infos of finished episodes. An exception of scoring is kept for the next call."""
        with self._changing():
            self._collect(keep_newest=self._num_nonblocking_episodes)
            return self.as_infos(self._deliver(self._pay(EnvironmentBooks.scored_episode)))

    def flush(self) -> dict[str, Any]:
        """Wait for all rewards: infos with those of unfinished episodes too.

        After an exception of scoring, rewards that have arrived are kept for the next call.
        """
        with self._changing():
            arrived = self._score_so_far()
        self.raise_failure()
        with self._changing():
            return self.as_infos(self._deliver(arrived))

    def _score_so_far(self) -> dict[int, Scored]:
        for books in self._books:
            books.close_chunk()
        self._collect(keep_newest=0)
        return self._pay(EnvironmentBooks.scored_so_far) if self._failure is None else {}

    def _collect(self, *, keep_newest: int) -> None:
        self._encoding.submit(*(request for books in self._books for request in books.unsubmitted))
        for books in self._books:
            books.unsubmitted.clear()
        for books in self._books:
            self._failure = books.collect(keep_newest=keep_newest) or self._failure

    def _pay(self, find: Callable[[EnvironmentBooks], Sequence[Chunk]]) -> dict[int, Scored]:
        """Find what is scored of each environment, and make its rewards. An exception of the head is kept."""
        arrived = {i: Scored(chunks) for i, books in enumerate(self._books) if (chunks := find(books))}
        num_bytes = sum(chunk.features.nbytes for scored in arrived.values() for chunk in scored.chunks)
        if len(arrived) > 1 and not self.head.looks_at_sequences and num_bytes < PIECE_BYTES:
            with suppress(ValueError):  # below, the rewards that can be made are made
                features = [scored.concatenate("features") for scored in arrived.values()]
                paid_all, stop = self.head.pay(np.concatenate(features), None), 0
                for scored, of_env in zip(arrived.values(), features, strict=True):
                    scored.pay(paid_all.part(slice(stop, stop := stop + len(of_env))))
                return arrived
        paid = dict[int, Scored]()
        for i, scored in arrived.items():
            of = f"environment {i}"
            try:
                if self.head.looks_at_sequences:
                    scored.advance(self.head, of)
                else:
                    scored.pay(self.head.pay(scored.concatenate("features"), None, of))
            except ValueError as error:
                self._failure = error
            else:
                paid[i] = scored
        return paid

    def _deliver(self, scored_parts: Mapping[int, Scored]) -> Mapping[int, Scored]:
        """Drop from the books what `_pay` has made the rewards of, and return it."""
        for i, scored in scored_parts.items():
            version = self.head.version if self.keeps_features else 0
            self._books[i].deliver(scored.chunks, scored.rewards, scored.carries, version)
        return scored_parts

    def as_infos(self, scored_parts: Mapping[int, Scored]) -> dict[str, Any]:
        """Infos of rewards that have just been delivered; see `vlmrm_gym.infos`."""
        num_envs = len(self._books)
        arrived = np.zeros(num_envs, dtype=np.bool_)
        rewards, features, offsets, exact = np.full((4, num_envs), None, dtype=object)
        episodes, start = np.zeros(num_envs, dtype=np.int64), np.array([books.num_delivered for books in self._books])
        for i, scored in scored_parts.items():
            arrived[i], episodes[i], rewards[i] = True, scored.chunks[0].episode.number, scored.rewards
            exact[i], offsets[i] = scored.concatenate("exact"), scored.concatenate("offsets")
            start[i] -= len(scored)
            if self.keeps_features:
                features[i] = scored.concatenate("features")
        infos = {"vlm_rewards": rewards, "vlm_episode_index": episodes, "vlm_reward_start": start}
        if self._rules.score_every > 1 or any(clip.every > 1 for clip in self._rules.clips):
            infos["vlm_scored"] = exact
        for i, scored in scored_parts.items():
            for key, value in scored.reported(self._task_reward_weight).items():
                infos.setdefault(key, np.full(num_envs, None, dtype=object))[i] = value
        if self.keeps_features:
            infos |= {"vlm_features": features, "vlm_task_rewards": offsets}
            infos["vlm_reward_version"] = np.full(num_envs, self.head.version)
        return {**infos, **{f"_{name}": arrived.copy() for name in infos}}
