"""Episodes that are remembered: pairs, clips and pictures are cut from them, and any moment can be drawn again."""

import json
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.untrusted import parse_json, unpack_arrays
from vlmrm_gym._util.validation import check_positive_integer
from vlmrm_gym.data.trajectory import COLUMNS, Trajectory
from vlmrm_gym.states.scene_changes import pack_changes, unpack_changes
from vlmrm_gym.states.states import States


class EpisodeLog:
    """The newest episodes of vector environments.

    >>> import gymnasium as gym, vlmrm_gym
    >>> log = vlmrm_gym.EpisodeLog(max_bytes=10**6)
    >>> envs = gym.make_vec("VLMRM/CartPole-v1", num_envs=2, episode_length=5, episode_log=log)
    >>> observations, infos = envs.reset(seed=0)
    >>> for _ in range(5):
    ...     observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
    >>> [len(episode) for episode in log.episodes]
    [5, 5]
    >>> (part,) = log.sample(1, length=3, seed=0)
    >>> envs.scorer.frames(part.states, size=(100, 150)).shape
    (3, 1, 100, 150, 3)
    >>> envs.close()

    Args:
        max_bytes: Limit on the memory of all episodes, those in progress included. The oldest go first.

    Raises:
        ValueError: `max_bytes` is not an integer of at least 1.
    """

    def __init__(self, max_bytes: int) -> None:
        check_positive_integer("max_bytes", max_bytes)
        self.max_bytes = int(max_bytes)
        self._episodes: deque[Trajectory] = deque()
        self._nbytes = self._growing = 0

    @classmethod
    def of(cls, episodes: Sequence[Trajectory]) -> "EpisodeLog":
        """A log of these episodes, without a limit: to save and load them."""
        log = cls(sys.maxsize)
        for episode in episodes:
            log.add(episode)
        return log

    def add(self, episode: Trajectory) -> None:
        """Add an episode that has ended. Rewards that arrive later are written into its own arrays."""
        self._episodes.append(episode)
        self._nbytes += episode.nbytes
        self._make_room()

    def grow(self, nbytes: int) -> None:
        """Count the memory of episodes in progress, which has changed by so many bytes, and make room for it."""
        self._growing += nbytes
        self._make_room()

    @property
    def episodes(self) -> Sequence[Trajectory]:
        """The episodes that have ended, oldest first."""
        return tuple(self._episodes)

    @property
    def nbytes(self) -> int:
        """Memory of all episodes, those in progress included, in bytes."""
        return self._nbytes + self._growing

    def __len__(self) -> int:
        """Number of steps of all episodes that have ended."""
        return sum(map(len, self._episodes))

    def sample(self, count: int, length: int, *, seed: Any = None, half_life: int | None = None) -> list[Trajectory]:
        """Sample parts of episodes, with replacement.

        Args:
            count: How many.
            length: Steps of each; shorter episodes have none.
            seed: Of `numpy.random.default_rng`, or a generator.
            half_life: None: all parts have the same probability. Otherwise newer ones have more: an episode's halves
                with every so many steps that came after it.

        Raises:
            ValueError: A number is below 1, or no episode is as long as `length`.
        """
        for name, value in (("count", count), ("length", length)):
            check_positive_integer(name, value)
        starts = np.array([max(0, len(episode) - length + 1) for episode in self._episodes], dtype=np.float64)
        if not starts.any():
            longest = max(map(len, self._episodes), default=0)
            raise ValueError(f"`length` must be at most that of the longest episode, {longest}. Received {length}.")
        weights = starts
        if half_life is not None:
            check_positive_integer("half_life", half_life)
            later = np.cumsum([0, *(len(episode) for episode in reversed(self._episodes))])[-2::-1]
            weights = starts * 0.5 ** (later / half_life)
        rng = np.random.default_rng(seed)
        chosen = rng.choice(len(starts), count, p=weights / weights.sum())
        first = rng.integers(starts[chosen].astype(np.int64))
        return [self._episodes[i][at : at + length] for i, at in zip(chosen, first.tolist(), strict=True)]

    def save(self, file: str | Path | IO[bytes]) -> None:
        """Write the episodes that have ended, array by array, as NumPy's ".npz" without pickles."""
        index, arrays = [], {}
        for i, episode in enumerate(self._episodes):
            index.append([episode.env_index, episode.episode_index, episode.start])
            columns = {"rows": episode.states.rows, **{name: getattr(episode, name) for name in COLUMNS}}
            if episode.states.changes is not None:
                columns |= {f"changes.{name}": value for name, value in pack_changes(episode.states.changes).items()}
            arrays |= {f"{i}.{name}": value for name, value in columns.items()}
        np.savez(file, index=np.array(json.dumps(index)), **arrays)

    def load(self, file: str | Path | IO[bytes]) -> None:
        """Replace the episodes by those of a file that `save` wrote; the oldest go if they are more than `max_bytes`.

        Raises:
            OSError, ValueError, LookupError: The file cannot be read, or is damaged.
        """
        with open(file, "rb") if isinstance(file, str | Path) else nullcontext(file) as opened:
            arrays = unpack_arrays(opened)
        index = parse_json(str(arrays.pop("index")))
        columns: list[dict[str, NDArray[Any]]] = [{} for _ in index]
        for name, array in arrays.items():
            episode, _, column = name.partition(".")
            columns[int(episode)][column] = array
        self._episodes = deque(map(_unpack, index, columns))
        self._nbytes = sum(episode.nbytes for episode in self._episodes)
        self._make_room()

    def _make_room(self) -> None:
        while self._episodes and self.nbytes > self.max_bytes:
            self._nbytes -= self._episodes.popleft().nbytes

    def __deepcopy__(self, memo: dict[int, Any]) -> "EpisodeLog":
        return self  # as Gymnasium copies constructor arguments: environments write to the log that was passed


def _unpack(numbers: Sequence[int], arrays: Mapping[str, NDArray[Any]]) -> Trajectory:
    changes = {name.removeprefix("changes."): value for name, value in arrays.items() if name.startswith("changes.")}
    states = States(arrays["rows"], unpack_changes(changes) if changes else None)
    columns: dict[str, Any] = {name: arrays[name] for name in COLUMNS}
    if {len(states), *map(len, columns.values())} != {len(states)}:
        raise ValueError("The file of an episode log is damaged: the columns of an episode have different lengths.")
    env_index, episode_index, start = numbers
    return Trajectory(env_index=env_index, episode_index=episode_index, start=start, states=states, **columns)
