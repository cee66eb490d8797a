"""Which states are scored, and what is interpolated between them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vlmrm_gym.rendering import SceneChange, States
from vlmrm_gym.scoring.random_views import RandomViews
from vlmrm_gym.scoring.scorer import transition_keys
from vlmrm_gym.scoring.sparse import SparseChunk, SparseScoring, choose, interpolate

CURVES = arrays(np.float32, st.integers(1, 60), elements=st.floats(-100, 100, width=32))


def identity(values):
    return values


def refine(function, every, tolerance):
    """Score states whose rewards are a function (N,): values, which were scored, and the errors that are left."""
    sparse, numbers, left = SparseScoring(every, tolerance), np.arange(len(function)), []
    sparse.report = lambda first, own: left.extend(own.tolist())
    chunk = SparseChunk(States(rows_of(numbers)), keys_of(len(function)), sparse, None)
    values, scored, rounds = score(chunk, lambda states: function[states.rows[:, 0].astype(int)])
    seen = [int(number) for states, _ in rounds for number in states.rows[:, 0]]
    assert len(seen) == len(set(seen)), "no state is scored twice"
    assert np.flatnonzero(scored).tolist() == sorted(seen)
    return values, scored, left


def score(chunk, reward):
    """Score a chunk by a function of states: values, where they are exact, and the rounds' states and keys."""
    rounds = []
    while (wanted := chunk.wanted()) is not None:
        rounds.append(wanted)
        chunk.add(reward(wanted[0]), identity)
    return *chunk.result(), rounds


@given(count=st.integers(1, 50), every=st.integers(1, 60))
def test_the_first_every_kth_and_the_last_state_are_chosen(count, every):
    assert choose(count, every).tolist() == sorted({*range(0, count, every), count - 1})


@given(curve=CURVES, every=st.integers(1, 20), size=st.integers(0, 2))
def test_values_are_exact_where_they_are_known_and_linear_between(curve, every, size):
    """Rewards (T,) and features (T, 1, D)."""
    chosen, states = choose(len(curve), every), np.arange(len(curve))
    columns = curve if size == 0 else np.stack([curve, -curve][:size], axis=-1)[:, None]
    values = interpolate(chosen, columns[chosen], states)
    assert values.dtype == np.float32
    assert values[chosen].tobytes() == columns[chosen].tobytes()
    expected = np.interp(states, chosen, curve[chosen])
    np.testing.assert_allclose(values if size == 0 else values[:, 0, 0], expected, atol=1e-4)


def test_differences_of_large_values_do_not_overflow():
    high = np.array([-3e38, 3e38], dtype=np.float32)
    assert interpolate(np.array([0, 2]), high, np.arange(3)).tolist() == [high[0], 0, high[1]]


@given(curve=CURVES, every=st.integers(3, 16), tolerance=st.floats(0.01, 50))
def test_what_is_left_has_a_middle_within_the_tolerance(curve, every, tolerance):
    """Halving ends, for any function; scored values stay; grid and middles are always scored."""
    grid = choose(len(curve), every)
    values, scored, left = refine(curve, every, tolerance)
    assert values[scored].tobytes() == curve[scored].tobytes()
    assert scored[grid].all()
    assert scored[(grid[:-1] + grid[1:]) // 2].all()
    assert max(left, default=0) <= np.float32(tolerance)


@given(
    kinks=st.lists(st.tuples(st.integers(1, 99), st.floats(0, 3)), max_size=6),
    every=st.integers(3, 16),
    tolerance=st.floats(0.05, 2),
)
def test_convex_piecewise_linear_functions_are_within_twice_the_tolerance(kinks, every, tolerance):
    """If the middle is off by d, then no other state is off by 2 d: the chords of a convex function say so."""
    states = np.arange(100)
    function = sum((slope * np.maximum(0, states - at) for at, slope in kinks), np.zeros(100)).astype(np.float32)
    values, _, _ = refine(function, every, tolerance)
    assert np.abs(values - function).max() <= 2 * tolerance + 1e-3


@pytest.mark.parametrize("at", range(1, 40))
def test_a_jump_is_found_exactly(at):
    function = (np.arange(40) >= at).astype(np.float32)
    values, scored, _ = refine(function, 8, 0.1)
    np.testing.assert_array_equal(values, function)
    assert scored.sum() <= 17, "few states besides the grid and its middles, 11"


def test_only_the_grid_and_its_middles_are_scored_of_a_line():
    values, scored, left = refine(np.arange(33, dtype=np.float32), 8, 0.01)
    assert np.flatnonzero(scored).tolist() == list(range(0, 33, 4))
    np.testing.assert_array_equal(values, np.arange(33))
    assert left == [0] * 4


def test_a_neighbour_that_bends_is_halved_too():
    """Beside a tent that is off by more than the tolerance, one that is off by more than half of it."""

    def tents(*tops):
        curve = np.interp(np.arange(17), [0, 4, 8, 12, 16], [0, tops[0], 0, tops[1], 0]).astype(np.float32)
        return np.flatnonzero(refine(curve, 8, 0.2)[1]).tolist()

    assert tents(1.0, 0.15) == list(range(0, 17, 2))
    assert tents(1.0, 0.05) == [0, 2, 4, 6, 8, 12, 16]
    assert tents(0.15, 0.15) == [0, 4, 8, 12, 16]


def rows_of(numbers):
    return np.array(numbers, dtype=np.float64)[:, None]


def keys_of(count):
    return transition_keys(0, np.arange(count))


def test_states_that_are_equal_are_scored_once():
    """A car that stands still: all of the still states have the reward of the one that was scored, and are exact."""
    still = SparseChunk(States(rows_of([5] * 30)), keys_of(30), SparseScoring(tolerance=0.1), None)
    values, exact, rounds = score(still, lambda states: states.rows[:, 0].astype(np.float32))
    assert [len(states) for states, _ in rounds] == [1]
    assert exact.all()
    assert values.tolist() == [5] * 30
    stops = SparseChunk(States(rows_of([*range(10), *[9] * 30])), keys_of(40), SparseScoring(tolerance=0.1), None)
    values, exact, rounds = score(stops, lambda states: states.rows[:, 0].astype(np.float32))
    assert sum(len(states) for states, _ in rounds) <= 5
    np.testing.assert_array_equal(values, [*range(10), *[9] * 30])
    assert exact[9:].all()


def test_states_next_to_changes_of_the_scene_are_scored():
    changes = [SceneChange({"light": np.ones(3)})] * 13 + [SceneChange({"light": np.zeros(3)})] * 20
    numbers = np.arange(33)
    chunk = SparseChunk(States(rows_of(numbers), changes), keys_of(33), SparseScoring(tolerance=0.1), None)

    def reward(states):
        bright = np.array([change.fields["light"][0] for change in states.changes])
        return (states.rows[:, 0] + 100 * bright).astype(np.float32)

    values, exact, _ = score(chunk, reward)
    np.testing.assert_array_equal(values, numbers + 100 * (numbers < 13))
    assert exact[[0, 12, 13, 32]].all()
    assert exact.sum() < 20


def test_states_whose_frames_were_captured_are_not_all_scored():
    """Each has a change of its own, its frame. Equal rows with different frames are different states."""
    changes = [SceneChange({}, np.full((2, 2, 3), number, dtype=np.uint8)) for number in range(33)]
    chunk = SparseChunk(States(rows_of([0] * 33), changes), keys_of(33), SparseScoring(tolerance=0.1), None)
    values, exact, _ = score(
        chunk, lambda states: np.array([change.frame[0, 0, 0] for change in states.changes], dtype=np.float32)
    )
    np.testing.assert_array_equal(values, np.arange(33))
    assert np.flatnonzero(exact).tolist() == list(range(0, 33, 4))


@pytest.mark.parametrize("tolerance", [None, 0.5])
def test_one_view_is_drawn_for_an_interval(tolerance):
    """Every reward is one that a single view gives, interpolated or not; that of a scored state is its usual view's."""
    views, keys, every = RandomViews(3), keys_of(42), 5
    views.seed(7, np.zeros(1, dtype=np.int64))
    sparse = SparseScoring(every, tolerance)
    chunk = SparseChunk(States(rows_of(np.arange(42))), keys, sparse, views)
    values, exact, rounds = score(chunk, lambda states: (states.rows[:, 0] + 100 * states.views).astype(np.float32))
    usual = views(keys)
    grid = choose(42, every)
    assert exact[grid].all()
    np.testing.assert_array_equal(values[grid], grid + 100 * usual[grid])
    for start, stop in pairwise(grid.tolist()):
        np.testing.assert_allclose(values[start:stop], np.arange(start, stop) + 100 * usual[start], atol=1e-4)
    for states, own_keys in rounds:
        np.testing.assert_array_equal(states.rows[:, 0], own_keys % 2**40)


def test_a_tolerance_that_the_grid_misses_by_far_for_long_is_warned_of():
    sparse = SparseScoring(tolerance=0.01)
    far = np.full(4, 0.2, dtype=np.float32)
    for _ in range(99):
        sparse.report(far, far / 100)
    with pytest.warns(UserWarning, match="score_every=4"):
        sparse.report(far, far / 100)
    sparse.report(far, far / 100)  # said once
    assert sparse.error == pytest.approx(0.002)
