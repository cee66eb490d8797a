"""Which states are scored, and what of: clips of an episode's states, held rewards, every k-th state."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.rewards.model import ClipShape
from vlmrm_gym.states import States

Indices = NDArray[np.int64]


class EpisodeClips:
    """Makes clips of the successive states of one environment, or takes the state whose reward is held.

    The clip of a state, or the state whose reward it has, is a function of the states of its episode only. So clips
    carry what they need: they can be split, sent anywhere and scored again in any order. Several encoders have a clip
    each: their columns are side by side, with the state itself at the end.
    """

    def __init__(self, shapes: Sequence[ClipShape]) -> None:
        self._shapes = shapes
        self._is_current = all(shape.is_current for shape in shapes)
        self._keeps_all = any(shape.is_prefix for shape in shapes)
        self._span = max(max(shape.span, shape.every - 1) for shape in shapes)
        self.begin_episode()

    def begin_episode(self, first: States | None = None) -> None:
        """Forget the states so far. `first` is the one before any action, if it is known."""
        self._count = 0
        """Number of states of the episode that actions led to; these have the numbers from 0 on, and `first` has -1."""
        self._kept: list[tuple[int, States]] = []
        """The states of the episode that later clips may reach back to, and the number of the first of each."""
        self._begin = 0
        if first is not None and self._keeps_all:
            self._begin, self._kept = -1, [(-1, first)]

    def first(self, first: States) -> States:
        """The state before any action, with clips of nothing else."""
        return first if self._is_current else replace(first, clips=self._join([-1]) * 0)

    def extend(self, states: States) -> States:
        """The next T states of the episode, with their clips; its first state is repeated where it is too young.

        Clips are int64 (T, F). Where a single encoder holds rewards, they are (T,): the last state that is scored.
        """
        if self._is_current:
            return states
        numbers = self._count + np.arange(len(states))
        self._kept.append((self._count, states))
        while not self._keeps_all and len(self._kept) > 1 and self._kept[1][0] <= self._count - self._span:
            del self._kept[0]
        self._count += len(states)
        return self._gather(self._join(numbers))

    def _join(self, numbers: ArrayLike) -> Indices:
        """The numbers of the states in the clips of states with these numbers."""
        newest = np.asarray(numbers, dtype=np.int64)[:, None]
        columns = [self._choose(shape, newest) for shape in self._shapes]
        if len(columns) > 1:
            return np.concatenate([*columns, newest], axis=1)
        return columns[0][:, 0] if columns[0].shape[1] == 1 else columns[0]

    def _choose(self, shape: ClipShape, newest: Indices) -> Indices:
        if shape.is_prefix:
            parts = np.linspace(0, 1, shape.length)
            return self._begin + np.rint(parts * (newest - self._begin)).astype(np.int64)
        if shape.every > 1:
            return newest - newest % shape.every
        return np.maximum(newest - shape.stride * np.arange(shape.length - 1, -1, -1), 0)

    def _gather(self, clips: Indices) -> States:
        used, index = np.unique(clips, return_inverse=True)
        owners = np.searchsorted([start for start, _ in self._kept], used, side="right") - 1
        parts = []
        for owner in np.unique(owners):
            start, states = self._kept[owner]
            parts.append(states[used[owners == owner] - start])
        return replace(States.concatenate(parts), clips=index.reshape(clips.shape))


def choose_every(count: int, every: int) -> Indices:
    """The states of a chunk that are scored: the first of `count`, every so manyth, and the last."""
    return np.unique(np.append(np.arange(0, count, every), count - 1))


def interpolate(chosen: Indices, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Values of all states up to the last chosen one: those of the chosen states (N, ...), and linear between.

    `chosen` is int64 (N,), increasing from 0. Returns (chosen[-1] + 1, ...), of the same dtype.
    """
    every = np.arange(chosen[-1] + 1)
    after = np.searchsorted(chosen, every)
    result, between = values[after], chosen[after] != every
    at, after = every[between], after[between]
    weights = (at - chosen[after - 1]) / (chosen[after] - chosen[after - 1])
    start, end = values[after - 1].astype(np.float64), values[after]
    result[between] = start + weights.reshape(-1, *(1,) * (values.ndim - 1)) * (end - start)
    return result
