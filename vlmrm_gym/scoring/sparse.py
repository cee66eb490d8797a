"""Scores every k-th state of a chunk, and interpolates linearly between them. Knows states, but no rewards."""

import warnings

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rewards.state_reward import RewardInfo
from vlmrm_gym.scoring.scorer import Values
from vlmrm_gym.validation import check_positive_integer

Indices = NDArray[np.int64]


class SparseScoring:
    """Which states are scored: of every chunk the first, every k-th and the last.

    Raises:
        ValueError: `every` is not a positive integer.
    """

    def __init__(self, every: int) -> None:
        check_positive_integer("score_every", every)
        self.every = int(every)
        self._warned = False

    def check(self, info: RewardInfo) -> None:
        """Raise a ValueError if a reward cannot be interpolated."""
        reason = None if info.interpolate else "says that it cannot be interpolated"
        if info.clip.length > 1:
            reason = "is of clips, which overlap"
        if info.clip.every > 1:
            reason = f"says itself that every {info.clip.every}th state is scored"
        if reason is not None and self.every > 1:
            raise ValueError(f"`score_every` is not for this reward: it {reason}. Received {self.every}. Leave it out.")

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


def interpolate(chosen: Indices, values: Values) -> Values:
    """Values of all states from the first chosen one, 0, to the last: those of the chosen ones, and linear between.

    Args:
        chosen: int64 (N,), increasing from 0: indices of states.
        values: Theirs, (N, ...).

    Returns:
        (chosen[-1] + 1, ...), of the same dtype.
    """
    every = np.arange(chosen[-1] + 1)
    after = np.searchsorted(chosen, every)
    result, between = values[after], chosen[after] != every
    at, after = every[between], after[between]
    weights = (at - chosen[after - 1]) / (chosen[after] - chosen[after - 1])
    start, end = values[after - 1].astype(np.float64), values[after]
    result[between] = start + weights.reshape(-1, *(1,) * (values.ndim - 1)) * (end - start)
    return result
