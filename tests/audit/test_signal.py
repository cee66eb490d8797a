"""Range, noise and distance to the goal of rewards along rollouts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from vlmrm_gym.audit.measures.signal import measure_signal

REWARDS = st.floats(-100, 100, width=32)


def test_a_steady_rise_half_way_to_the_goal():
    found = measure_signal([np.linspace(0, 0.5, 11)], 1.0)
    assert (found.low, found.high, found.goal, found.problem) == (0, 0.5, 1, None)
    assert found.noise == pytest.approx(1 / 10)
    assert found.gap == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("rewards", "goal", "noise", "gap"),
    [
        ([[0.2, 0.2, 0.2]], 0.9, 0, 1),  # nothing to climb
        ([[0.2, 0.2], [0.2, 0.9]], 0.9, 0.5, 0),  # one constant action reaches the goal's reward
        ([[0.0, 1.0, 0.0, 1.0]], 0.5, 1, -0.5),  # paid more than the goal, and all noise
        ([[0.0, 1.0]], -1.0, 1, -1),  # the goal has the lowest reward
        ([[0.0, 1.0]], [3.0, 4.0, 100.0], 1, 0.75),  # the goal's median
    ],
)
def test_closed_forms(rewards, goal, noise, gap):
    found = measure_signal(rewards, goal)
    assert (found.noise, found.gap) == pytest.approx((noise, gap))


def test_rollouts_may_have_different_lengths():
    found = measure_signal([[0.0, 0.5], [0.5, 0.75, 0.5, 0.25]], 1.0)
    assert (found.low, found.high, found.gap) == (0, 0.75, 0.25)  # the best state is beyond the shortest rollout
    assert found.noise == pytest.approx((0.5 + 3 * 0.25) / 4 / 0.75)


def test_independent_uniform_rewards_change_by_a_third_of_their_range():
    assert measure_signal(np.random.default_rng(0).random((100, 500)), 1.0).noise == pytest.approx(1 / 3, abs=0.01)


@given(arrays(float, array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=5), elements=REWARDS), REWARDS)
def test_measures_stay_in_their_ranges_and_reverse_with_time(rewards, goal):
    found = measure_signal(rewards, goal)
    assert 0 <= found.noise <= 1
    assert found.noise == pytest.approx(measure_signal(rewards[:, ::-1], goal).noise)
    if len({*rewards.flat, goal}) == 1:
        assert found.gap is None
    if found.gap is None:
        assert "all alike" in found.problem
    else:
        assert -1 <= found.gap <= 1
        assert np.sign(found.gap) == np.sign(goal - rewards.max())
