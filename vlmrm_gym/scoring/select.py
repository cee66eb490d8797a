"""Which states are scored, and what of: clips of an episode's states, held rewards, every k-th state."""

import warnings
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rewards.model import ClipShape
from vlmrm_gym.states import States

Indices = NDArray[np.int64]


class EpisodeClips:
    """Makes clips of the successive states of one environment, or takes the state whose reward is held.

    The clip of a state, or the state whose reward it has, is a function of the last states of its episode only. So
    clips carry what they need: they can be split, sent anywhere and scored again in any order.
    """

    def __init__(self, shape: ClipShape) -> None:
        self._shape = shape
        self._before: States | None = None
        """The newest states of the episode, as many as clips reach back; None if it has none yet."""
        self._count = 0
        """Number of states of the episode."""

    def begin_episode(self) -> None:
        """Forget the states so far."""
        self._before, self._count = None, 0

    def extend(self, states: States) -> States:
        """The next T states of the episode, with their clips; its first state is repeated where it is too young.

        Where rewards are held, clips are (T,): the last state that is scored.
        """
        if self._shape == ClipShape():
            return states
        every = states if self._before is None else States.concatenate([self._before, states])
        newest = np.arange(len(every) - len(states), len(every))
        numbers = self._count + np.arange(len(states))
        self._count += len(states)
        if self._shape.every > 1:
            clips, span = newest - numbers % self._shape.every, self._shape.every - 1
        else:
            back = self._shape.stride * np.arange(self._shape.length - 1, -1, -1)
            clips, span = np.maximum(newest[:, None] - back, 0), self._shape.span
        self._before = every[len(every) - min(len(every), span) :]
        return replace(every, clips=clips)[:]  # without rows that no clip has


class SparseScoring:
    """Scores the first, every k-th and the last state of every chunk."""

    def __init__(self, every: int) -> None:
        self.every, self._warned = every, False

    def end_episode(self, length: int) -> None:
        """Warn, once, of an episode of which only the ends are scored."""
        if 2 < length <= self.every and not self._warned:
            self._warned = True
            warnings.warn(
                f"`score_every` is {self.every}, and an episode had {length} steps: only its first and its last are "
                "scored. Pass a smaller one.",
                stacklevel=2,
            )

    def choose(self, count: int) -> Indices:
        """The states of a chunk that are scored: the first of `count`, every k-th, and the last."""
        return np.unique(np.append(np.arange(0, count, self.every), count - 1))


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
