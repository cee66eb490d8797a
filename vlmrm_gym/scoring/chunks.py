"""Chunks of episodes whose states have been submitted, and the rewards that are made of their features."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.data.trajectory import COLUMNS
from vlmrm_gym.rewards.current_head import CurrentHead, Paid
from vlmrm_gym.rewards.heads import TERM, Reports
from vlmrm_gym.rewards.model import Rewards
from vlmrm_gym.scoring.requests import EpisodeMemory, Request
from vlmrm_gym.scoring.select import Indices, interpolate
from vlmrm_gym.states import States


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
    first: Request | None
    """Of the state before the first action, if the episode begins here and the head sees it."""
    features: Any = None
    """float32 (N, V, D) of the N states that are scored; None before they are."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def requests(self) -> list[Request]:
        """All that has to be encoded, in order."""
        return [self.request] if self.first is None else [self.first, self.request]


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


def find_scored(chunks: Sequence[Chunk]) -> Scored | None:
    """The chunks, one after the other; None if one is not collected, or there is none."""
    return Scored(chunks) if chunks and all(chunk.features is not None for chunk in chunks) else None
