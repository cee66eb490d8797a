"""Agreement of rewards with labels."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrm_gym.audit.measures import measure_agreement
from vlmrm_gym.metrics import auc, epic_distance

CASES = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30)


def arrays_of(pairs):
    rewards, success = map(np.array, zip(*pairs, strict=True))
    return rewards.astype(float), success


def test_separated_classes():
    found = measure_agreement([0.0, 0.2, 0.8, 1.0], [False, False, True, True])
    assert found.problem is None
    assert (found.successes, found.failures) == (2, 2)
    assert (found.auc.value, found.auc.low, found.auc.high) == (1, 1, 1)


@given(CASES)
def test_nothing_is_nan_and_what_is_missing_is_explained(pairs):
    rewards, success = arrays_of(pairs)
    found = measure_agreement(rewards, success, resamples=20)
    assert (found.successes, found.failures) == (success.sum(), (~success).sum())
    if len(set(success)) == 1 or len(set(rewards)) == 1:
        assert found.auc is found.epic is None
        assert found.problem
    else:
        assert found.problem is None
        assert found.auc.value == auc(rewards, success)
        assert found.epic.value == epic_distance(rewards, success)
        for interval in (found.auc, found.epic):
            assert 0 <= interval.low <= interval.high <= 1


@pytest.mark.parametrize(
    ("rewards", "success", "problem"),
    [
        ([0.1, 0.2], [True, True], "All 2 states are successes: without failures there is nothing to compare"),
        ([0.1, 0.2], [False, False], "All 2 states are failures: without successes"),
        ([0.1, 0.1], [True, False], r"All 2 rewards are alike \(0.1\)"),
        ([0.1, 0.1], [True, True], "All 2 states are successes"),
        ([1e6, 1e6 * (1 + 1e-12)], [True, False], r"alike \(1e\+06\)"),
    ],
)
def test_what_cannot_be_measured_is_said(rewards, success, problem):
    assert re.search(problem, measure_agreement(rewards, success).problem)


def test_groups_reach_the_intervals():
    rewards, success = np.tile([0.0, 2.0, 1.0, 3.0], 9), np.tile([False, False, True, True], 9)
    single, grouped = (measure_agreement(rewards, success, groups=groups) for groups in (None, np.arange(36) % 4))
    assert grouped.auc.low < single.auc.low
    assert grouped.epic.high > single.epic.high


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"reward": [1.0]}, r"Received shapes \(1,\) and \(2,\)"),
        ({"reward": [1.0, np.nan]}, "`reward` must be finite. Received nan at"),
        ({"success": [0, 1]}, "int64 as success"),
        ({"reward": [], "success": np.zeros(0, dtype=bool)}, "with N at least 1"),
    ],
)
def test_bad_input(options, error):
    with pytest.raises(ValueError, match=error):
        measure_agreement(**{"reward": [1.0, 2.0], "success": [True, False], **options})
