"""Agreement of rewards with judges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrm_gym.agreement import auc, epic_distance

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
    ],
)
def test_bad_input(measure, reward, success, error):
    with pytest.raises(ValueError, match=error):
        measure(reward, success)
