"""Agreement of rewards with success labels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrm_gym.data.metrics import all_alike, auc, epic_distance

cases = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30).filter(
    lambda pairs: len({success for _, success in pairs}) == 2
)


@given(cases)
def test_auc_is_how_often_a_success_beats_a_failure(pairs):
    reward, success = map(np.array, zip(*pairs, strict=True))
    won, lost = reward[success][:, None], reward[~success]
    assert auc(reward, success) == pytest.approx(((won > lost) + (won == lost) / 2).mean())


@given(cases.filter(lambda pairs: len({reward for reward, _ in pairs}) > 1), st.floats(0.1, 10), st.floats(-5, 5))
def test_epic_distance_is_of_the_correlation_and_ignores_scale_and_offset(pairs, scale, offset):
    reward, success = map(np.array, zip(*pairs, strict=True))
    distance = epic_distance(reward, success)
    assert distance**2 == pytest.approx((1 - np.corrcoef(reward, success)[0, 1]) / 2, abs=1e-9)
    assert epic_distance(scale * reward + offset, success) == pytest.approx(distance, abs=1e-6)
    assert epic_distance(-reward, success) ** 2 == pytest.approx(1 - distance**2, abs=1e-6)


def test_bad_input():
    for reward, success, error in (
        ([1.0, 2.0], [True], "`reward` must be numbers"),
        ([1.0, 2.0], [1, 0], "and int64 as success"),
        ([1.0, 2.0], [True, True], "must have both True and False"),
        ([1.0, np.nan], [True, False], "`reward` must be finite. Received nan at 1, and 1 such in all"),
        ([0.3, 0.1 + 0.2], [True, False], r"a constant has no correlation\. Received 0\.3"),
    ):
        for measure in (epic_distance, auc)[: 1 if "constant" in error else 2]:
            with pytest.raises(ValueError, match=error):
                measure(reward, success)
    assert not all_alike(np.float32([1, np.nextafter(np.float32(1), np.float32(2))]))
