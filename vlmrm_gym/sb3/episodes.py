"""Tracks the episodes of one environment, and which of their rewards have arrived."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class _Episode:
    steps: int = 0
    scored: int = 0
    successes: int = 0
    vlm_return: float = 0.0
    task_return: float = 0.0
    has_success: bool = False
    """Whether the environment reports success."""
    ended: bool = False
    aborted: bool = False
    """Whether a reset ended it, or some of its steps or rewards were lost."""


class EpisodeTracker:
    """The books of one environment, whose rewards may arrive after the episode."""

    def __init__(self) -> None:
        self.num_steps = 0
        """Number of transitions so far; the `vlm_step_index` of the next one."""
        self._episodes = deque([_Episode()])
        self._new_rewards: list[dict[str, NDArray[Any]]] = []
        """Rewards, and what belongs to them, that have arrived since the last `pop_updates`."""

    @property
    def num_steps_in_episode(self) -> int:
        """Transitions of the episode in progress; 0 where the next one begins an episode."""
        return self._episodes[-1].steps

    @property
    def _num_unscored(self) -> int:
        return sum(episode.steps - episode.scored for episode in self._episodes)

    def step(self, task_reward: float, success: bool | None) -> float:
        """Add a transition; `success` is None if it is not reported. Returns the fraction of successes so far."""
        self.num_steps += 1
        episode = self._episodes[-1]
        episode.steps += 1
        episode.task_return += float(task_reward)
        episode.successes += bool(success)
        episode.has_success |= success is not None
        return episode.successes / episode.steps

    def skip_to(self, index: int) -> None:
        """Count the transitions before an index that no `step` added: the calls that made them raised an exception."""
        if index > self.num_steps:
            self._episodes[-1].steps += index - self.num_steps
            self._episodes[-1].aborted = True
            self.num_steps = index

    def end_episode(self, *, aborted: bool = False) -> None:
        """Begin another episode with the next transition. `aborted`: a reset has ended this one."""
        if self._episodes[-1].steps:
            self._episodes[-1].ended = True
            self._episodes[-1].aborted |= aborted
            self._episodes.append(_Episode())

    def add_rewards(self, start: int, late: Mapping[str, NDArray[Any]]) -> None:
        """Add the late fields (T, ...) of the transitions from an index on; see `late_fields`.

        Those that have their rewards already are left out. Unscored transitions before the index will not get theirs.
        """
        self.skip_to(start + len(late["vlm_rewards"]))
        oldest = self.num_steps - self._num_unscored
        late = {name: values[max(0, oldest - start) :] for name, values in late.items()}
        rewards = late["vlm_rewards"]
        if start > oldest:
            self._new_rewards.clear()  # they would not be contiguous
            for episode, lost in self._split(start - oldest):
                episode.scored += lost
                episode.aborted |= lost > 0
        self._new_rewards.append(late)
        for episode, count in self._split(len(rewards)):
            own, rewards = rewards[:count], rewards[count:]
            episode.vlm_return += float(own.sum())
            episode.scored += count

    def _split(self, count: int) -> Iterator[tuple[_Episode, int]]:
        """The episodes of the oldest unscored transitions, with how many each has."""
        for episode in self._episodes:
            own = min(count, episode.steps - episode.scored)
            count -= own
            yield episode, own

    def pop_updates(self, seconds: float, *, newest: bool = False) -> dict[str, Any]:
        """Info entries for the rewards that have arrived since the last call; see `vlmrm_gym.infos`.

        At most one episode is reported in each call, without the aborted ones: where there are several, the newest
        only, or the oldest, and the others in the next calls. `seconds` are its `t`.
        """
        info: dict[str, Any] = {}
        if self._new_rewards:
            info = {name: np.concatenate([late[name] for late in self._new_rewards]) for name in self._new_rewards[0]}
            info["vlm_reward_start"] = self.num_steps - self._num_unscored - len(info["vlm_rewards"])
            self._new_rewards.clear()
        while (oldest := self._episodes[0]).ended and oldest.scored == oldest.steps:
            if "episode" in info and not newest:
                break
            self._episodes.popleft()
            if oldest.aborted:
                continue
            info["episode"] = info["scored_episode"] = {
                "r": oldest.vlm_return,
                "l": oldest.steps,
                "t": seconds,
                "task_return": oldest.task_return,
                **({"success": oldest.successes / oldest.steps} if oldest.has_success else {}),
            }
        return info
