"""Agreement of rewards with success labels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrm_gym.metrics import all_alike, auc, epic_distance, pearson_distance

cases = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30).filter(
    lambda pairs: len({success for _, success in pairs}) == 2
)


@given(cases)
def test_auc_is_how_often_a_success_beats_a_failure(pairs):
    wins = [
        1.0 if won > lost else 0.5 if won == lost else 0.0
        for won, success in pairs
        if success
        for lost, other in pairs
        if not other
    ]
    reward, success = map(np.array, zip(*pairs, strict=True))
    assert auc(reward, success) == pytest.approx(np.mean(wins))


@given(cases.filter(lambda pairs: len({reward for reward, _ in pairs}) > 1), st.floats(0.1, 10), st.floats(-5, 5))
def test_epic_distance_ignores_scale_and_offset_and_turns_round(pairs, scale, offset):
    reward, success = map(np.array, zip(*pairs, strict=True))
    distance = epic_distance(reward, success)
    assert epic_distance(scale * reward + offset, success) == pytest.approx(distance, abs=1e-6)
    assert epic_distance(-reward, success) ** 2 == pytest.approx(1 - distance**2, abs=1e-6)


def test_known_values():
    success = np.array([False, False, True, True])
    assert auc([0.1, 0.4, 0.3, 0.9], success) == 0.75
    assert epic_distance([0.0, 0.0, 1.0, 1.0], success) == pytest.approx(0)
    assert epic_distance([1.0, 1.0, 0.0, 0.0], success) == pytest.approx(1)
    assert epic_distance([0.0, 1.0, 0.0, 1.0], success) == pytest.approx(np.sqrt(0.5))


@pytest.mark.parametrize("measure", [auc, epic_distance])
@pytest.mark.parametrize(
    ("reward", "success", "error"),
    [
        ([1.0, 2.0], [True], "`reward` must be numbers"),
        ([1.0, 2.0], [1, 0], "and int64 as success"),
        ([1.0, 2.0], [True, True], "must have both True and False"),
        ([1.0, np.nan], [True, False], r"`reward` must be finite. Received nan at \(1,\), and 1 such in all"),
    ],
)
def test_bad_input(measure, reward, success, error):
    with pytest.raises(ValueError, match=error):
        measure(reward, success)


def test_constant_rewards_have_no_epic_distance():
    with pytest.raises(ValueError, match=r"a constant has no correlation\. Received 0\.3"):
        epic_distance([0.3, 0.3], [True, False])


@given(st.integers(0, 999))
def test_pearson_distance_is_that_of_numpys_correlation(seed):
    first, second = np.random.default_rng(seed).normal(size=(2, 9))
    rho = np.corrcoef(first, second)[0, 1]
    found = pearson_distance(first.reshape(3, 3), second.reshape(3, 3))
    assert found == pytest.approx(np.sqrt((1 - rho) / 2), abs=1e-7)
    assert pearson_distance(first, 2 * first + 1) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([1, 2], [1, 2, 3]), r"must have the same shape, and not be empty. Received \(2,\) and \(3,\)"),
        (([], []), "not be empty"),
        (([1, 2], [1, np.inf]), "`second` must be finite"),
        (([2, 2], [1, 2]), "`first` must have different numbers"),
    ],
)
def test_bad_rewards_to_compare(arguments, error):
    with pytest.raises(ValueError, match=error):
        pearson_distance(*arguments)


def test_numbers_are_alike_that_differ_by_rounding():
    assert all_alike([0.0, 0.0])
    assert all_alike([0.3, 0.1 + 0.2])
    assert not all_alike(np.float32([1, np.nextafter(np.float32(1), np.float32(2))]))
