"""Scores some of the states of a chunk, and interpolates linearly between them. Knows states, but no rewards.

A chunk is a row of *nodes*, one for each state. Where each interval is seen from a view of its own, the state between
two views is two nodes: the end of one interval and the beginning of the next.
"""

import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rendering import SceneChange, States
from vlmrm_gym.rewards.base import Rewards
from vlmrm_gym.rewards.state_reward import RewardInfo
from vlmrm_gym.scoring.random_views import RandomViews
from vlmrm_gym.scoring.scorer import Keys, Values
from vlmrm_gym.validation import check_positive_integer, is_number

Indices = NDArray[np.int64]
MakeRewards = Callable[[Values], Rewards]
"""From what was made of N states to their rewards."""

FIRST_GRID = 8
"""With a tolerance, unless `score_every` says more."""
_NUM_RECENT = 100
"""Chunks over which the error is averaged."""
_FAR = 4.0
"""Times the tolerance by which middles are off where the grid is too wide."""


class SparseScoring:
    """Which states are scored, and how well interpolation has done.

    Args:
        every: Of every chunk the first, every so manyth and the last state are scored.
        tolerance: Intervals whose middle is off by more than this are halved; None: they are left as they are.

    Raises:
        ValueError: One is out of range, or they contradict each other.
    """

    def __init__(self, every: int = 1, tolerance: float | None = None) -> None:
        check_positive_integer("score_every", every)
        if tolerance is not None and not (is_number(tolerance) and 0 < tolerance < np.inf):
            raise ValueError(f"`score_tolerance` must be a finite number above 0. Received {tolerance!r}.")
        if tolerance is not None and every == 2:
            raise ValueError(
                "`score_every` must be at least 3 with a `score_tolerance`: with 2 all states are scored at once. "
                f"Received 2. Leave it out: it is then {FIRST_GRID}."
            )
        self.tolerance = tolerance
        self.parameter = "score_every" if tolerance is None else "score_tolerance"
        """The one that was passed."""
        self.every = FIRST_GRID if tolerance is not None and every == 1 else int(every)
        self._left, self._first = (deque[float](maxlen=_NUM_RECENT) for _ in range(2))
        self._warned = False

    @classmethod
    def of(cls, every: int, tolerance: float | None) -> "SparseScoring | None":
        """None if all states are scored. Raises a ValueError like the constructor."""
        sparse = cls(every, tolerance)
        return None if sparse.every == 1 else sparse

    def check(self, info: RewardInfo) -> None:
        """Raise a ValueError if a reward cannot be interpolated."""
        reason = None if info.interpolate else "says that it cannot be interpolated"
        if info.clip.length > 1:
            reason = "is of clips, which overlap"
        if info.clip.every > 1:
            reason = f"says itself that every {info.clip.every}th state is scored"
        if reason is not None:
            raise ValueError(
                f"`{self.parameter}` is not for this reward: it {reason}. Received {self.tolerance or self.every!r}. "
                "Leave it out."
            )

    @property
    def error(self) -> float:
        """By how much the middles of the intervals that were left as they are have been off; NaN without any."""
        return float(np.mean(self._left)) if self._left else np.nan

    def end_episode(self, length: int) -> None:
        """Warn, once, of an episode of which only the ends are scored."""
        if self.tolerance is None and 2 < length <= self.every and not self._warned:
            self._warned = True
            warnings.warn(
                f"`score_every` is {self.every}, and an episode had {length} steps: only its first and its last are "
                "scored. Pass a smaller one.",
                stacklevel=2,
            )

    def report(self, first: Rewards, left: Rewards) -> None:
        """Add a chunk: by how much the first middles, and those of the intervals that were left, have been off."""
        for recent, errors in ((self._first, first), (self._left, left)):
            if len(errors):
                recent.append(float(errors.mean()))
        if self.tolerance is None or self._warned or len(self._first) < _NUM_RECENT:
            return
        if (mean := float(np.mean(self._first))) > _FAR * self.tolerance:
            self._warned = True
            warnings.warn(
                f"`score_tolerance` is {self.tolerance}, and the middles between every {self.every}th state are off by "
                f"{mean:.3g} on average: most intervals are halved, and short changes can be missed. Pass "
                f"score_every={max(3, self.every // 2)}, or a higher tolerance.",
                stacklevel=2,
            )


def choose(count: int, every: int) -> Indices:
    """The first of `count` states, every so manyth, and the last."""
    return np.unique(np.append(np.arange(0, count, every), count - 1))


def interpolate(chosen: Indices, values: Values, at: Indices) -> Values:
    """Values of any states: those of the chosen ones, and linear between them.

    Args:
        chosen: int64 (N,), increasing: indices of states.
        values: Theirs, (N, ...).
        at: int64 (M,): states between the first chosen one and the last.

    Returns:
        (M, ...), of the same dtype.
    """
    after = np.searchsorted(chosen, at)
    result, between = values[after], chosen[after] != at
    at, after = at[between], after[between]
    weights = (at - chosen[after - 1]) / (chosen[after] - chosen[after - 1])
    start, end = values[after - 1].astype(np.float64), values[after]
    result[between] = start + weights.reshape(-1, *(1,) * (values.ndim - 1)) * (end - start)
    return result


def middles(knots: Indices) -> tuple[Indices, Indices]:
    """The intervals between knots that have a middle, by the number of their first knot; and these middles."""
    long = np.flatnonzero(np.diff(knots) > 1)
    return long, (knots[long] + knots[long + 1]) // 2


class SparseChunk:
    """T successive states of an episode, of which some are scored.

    With a tolerance, intervals between knots are halved until their middles are where they are expected.

    Args:
        states: The states, without views or clips.
        keys: int64 (T,).
        sparse: Which are scored.
        random_views: Draws a view for each interval of `sparse.every`; None: all views of a state are scored.
    """

    def __init__(self, states: States, keys: Keys, sparse: SparseScoring, random_views: RandomViews | None) -> None:
        self._sparse, self._states, self._keys = sparse, states, keys
        grid = choose(len(states), sparse.every)
        self._at = np.arange(len(states))
        """The state of each node."""
        self._views: NDArray[np.int64] | None = None
        if random_views is not None:
            of_intervals = random_views(keys[grid])
            views = of_intervals[np.searchsorted(grid, self._at, side="right") - 1]
            turns = grid[1:][of_intervals[1:] != of_intervals[:-1]]
            self._at, self._views = np.insert(self._at, turns, turns), np.insert(views, turns, views[turns - 1])
        self._own = np.searchsorted(self._at, np.arange(len(states)), side="right") - 1
        """The node of each state that has its reward: the later one."""
        breaks, repeats = self._compare()
        fixed = np.isin(np.arange(len(self._at)), self._own[grid])
        fixed |= breaks | np.append(breaks[1:], False)
        self._run = np.cumsum(~repeats) - 1
        """The run of equal nodes that each node is in. Nodes are scored, and interpolated, once for a run."""
        self._first_of_run = np.flatnonzero(~repeats)
        self._knots: Indices = np.unique(self._run[fixed])
        self._known = np.empty(0, dtype=np.int64)
        self._values: Values | None = None
        """Of the known runs."""
        self._wanted: Indices = (
            self._knots if sparse.tolerance is None else np.union1d(self._knots, middles(self._knots)[1])
        )
        """Runs to score next; empty once nothing is wanted."""
        self._first_errors = np.empty(0, dtype=np.float32)
        """float32: by how much the first middles were off."""

    def _compare(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Where nothing is interpolated between a node and the one before it, and where the two are equal."""
        breaks, repeats = np.insert(self._at[1:] == self._at[:-1], 0, False), np.zeros(len(self._at), dtype=np.bool_)
        if self._sparse.tolerance is None:
            return breaks, repeats
        rows, changes = self._states.rows, self._states.changes
        for node in np.flatnonzero(~breaks)[1:].tolist():
            state = int(self._at[node])
            before, now = (changes[state - 1], changes[state]) if changes else (None, None)
            breaks[node] = not _is_same_scene(before, now)
            is_drawn = now is before or (now is not None and now.frame is None)
            repeats[node] = not breaks[node] and is_drawn and np.array_equal(rows[state], rows[state - 1])
        return breaks, repeats

    @property
    def nbytes(self) -> int:
        """Bytes of states that may be scored in another round."""
        return 0 if self._sparse.tolerance is None else self._states.nbytes

    def wanted(self) -> tuple[States, Keys] | None:
        """The states to score next, and their keys; None once all is known."""
        nodes = self._first_of_run[self._wanted]
        if not len(nodes):
            return None
        chosen = replace(self._states[self._at[nodes]], views=None if self._views is None else self._views[nodes])
        if self._sparse.tolerance is None:
            self._states = chosen  # there is no other round: free the others
        return chosen, self._keys[self._at[nodes]]

    def add(self, values: Values, make_rewards: MakeRewards) -> None:
        """Add what was made of the wanted states, (N, ...), and halve intervals."""
        is_first, runs = self._values is None, np.append(self._known, self._wanted)
        every = values if self._values is None else np.concatenate([self._values, values])
        order = np.argsort(runs)
        self._known, self._values, self._wanted = runs[order], every[order], np.empty(0, dtype=np.int64)
        if self._sparse.tolerance is None:
            return
        errors = self._middle_errors(self._values, make_rewards)
        if is_first:
            self._first_errors = errors[np.isfinite(errors)]
        off = errors > self._sparse.tolerance
        beside = np.append(off[1:], False) | np.insert(off[:-1], 0, False)
        halved = off | (beside & (errors > self._sparse.tolerance / 2))
        left = errors[~halved & np.isfinite(errors)]
        halves = (self._knots[:-1] + self._knots[1:]) // 2
        self._knots = np.union1d(self._knots, halves[halved])
        self._wanted = np.setdiff1d(middles(self._knots)[1], self._known)
        if not len(self._wanted):
            self._sparse.report(self._first_errors, left)

    def _middle_errors(self, values: Values, make_rewards: MakeRewards) -> Rewards:
        """By how much the middle of each interval is off its ends' line; NaN where there is none."""
        errors = np.full(len(self._knots) - 1, np.nan, dtype=np.float32)
        long, middle = middles(self._knots)
        if len(long):
            expected = interpolate(self._knots, values[np.searchsorted(self._known, self._knots)], middle)
            of_middles = values[np.searchsorted(self._known, middle)]
            errors[long] = np.abs(make_rewards(of_middles) - make_rewards(expected))
        return errors

    def result(self) -> tuple[Values, NDArray[np.bool_]]:
        """What was made of the T states, (T, ...); and bool (T,): of which it was made, or of an equal neighbour."""
        assert self._values is not None
        runs = self._run[self._own]
        return interpolate(self._known, self._values, runs), np.isin(runs, self._known)


def _is_same_scene(before: SceneChange | None, now: SceneChange | None) -> bool:
    """Whether two states are of one scene. Their frames, if they cannot be drawn, may differ."""
    if now is before:
        return True
    old, new = before or SceneChange(), now or SceneChange()
    return (
        old.fields.keys() == new.fields.keys()
        and all(new.fields[name] is value for name, value in old.fields.items())
        and (old.frame is None) == (new.frame is None)
    )
