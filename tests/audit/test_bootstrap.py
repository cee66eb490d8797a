"""Bootstrap intervals of AUC and EPIC distance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrm_gym.audit import measures
from vlmrm_gym.audit.measures import measure_intervals
from vlmrm_gym.metrics import auc, epic_distance


def auc_interval(*arguments, **options):
    return measure_intervals(*arguments, **options)[0]


def epic_interval(*arguments, **options):
    return measure_intervals(*arguments, **options)[1]


MEASURES = [(auc_interval, auc), (epic_interval, epic_distance)]
SUCCESS = np.arange(40) % 4 == 0
REWARDS = np.random.default_rng(0).normal(size=40).round(1) + SUCCESS  # some tied


def drawn_counts(labels, groups=None, resamples=50, seed=0):
    rows = np.arange(len(labels)) if groups is None else groups
    return np.concatenate(list(measures._draw(labels, rows, resamples, seed)))


@pytest.mark.parametrize(("interval", "measure"), MEASURES)
def test_an_interval_is_the_percentiles_of_the_measure_of_repeated_rows(interval, measure):
    """The vectorised computation, against the plain measure of every resample."""
    plain = [
        measure(np.repeat(REWARDS, counts), np.repeat(SUCCESS, counts))
        for counts in drawn_counts(SUCCESS, seed=3).astype(int)
    ]
    found = interval(REWARDS, SUCCESS, resamples=50, seed=3)
    assert found.value == measure(REWARDS, SUCCESS)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(plain, [0.025, 0.975])), abs=1e-9)


@pytest.mark.parametrize(("interval", "_"), MEASURES)
def test_the_seed_decides_and_the_size_of_blocks_does_not_change_what_a_resample_is(interval, _, monkeypatch):
    assert interval(REWARDS, SUCCESS) == interval(REWARDS, SUCCESS)
    assert interval(REWARDS, SUCCESS, seed=1) != interval(REWARDS, SUCCESS)
    monkeypatch.setattr(measures, "BLOCK", 7 * len(SUCCESS))
    assert drawn_counts(SUCCESS).shape == (50, 40)
    assert (drawn_counts(SUCCESS)[:, SUCCESS].sum(axis=1) == SUCCESS.sum()).all()
    assert interval(REWARDS, SUCCESS).low == pytest.approx(interval(REWARDS, SUCCESS, seed=9).low, abs=0.05)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=20), st.integers(0, 99))
def test_groups_are_drawn_whole_and_every_resample_has_the_labels_of_the_original(rows, seed):
    groups, labels = map(np.array, zip(*rows, strict=True))
    counts = drawn_counts(labels, groups, seed=seed)
    for group in np.unique(groups):
        assert (np.ptp(counts[:, groups == group], axis=1) == 0).all()
    assert ((counts[:, labels].sum(axis=1) > 0) == labels.any()).all()
    assert ((counts[:, ~labels].sum(axis=1) > 0) == (~labels).any()).all()


@pytest.mark.parametrize(("interval", "_"), MEASURES)
def test_copies_of_rows_narrow_an_interval_unless_they_are_a_group(interval, _):
    def width(rewards, success, **options):
        found = interval(rewards, success, **options)
        return found.high - found.low

    once = width(REWARDS, SUCCESS)
    copies = np.repeat(REWARDS, 9), np.repeat(SUCCESS, 9)
    assert width(*copies) == pytest.approx(once / 3, rel=0.2)
    assert width(*copies, groups=np.repeat(np.arange(40), 9)) == pytest.approx(once, rel=1e-6)


def test_most_intervals_hold_the_true_value():
    """Successes that are one standard deviation above failures: AUC is Phi(1 / sqrt(2)) = 0.76025."""
    held = 0
    for seed in range(200):
        rewards = np.random.default_rng(seed).normal(size=120)
        success = np.arange(120) < 60
        found = auc_interval(rewards + success, success, resamples=200, seed=seed)
        held += found.low <= 0.76025 <= found.high
    assert 0.88 <= held / 200 <= 0.99


def test_separated_classes_and_resamples_without_differences():
    assert auc_interval([0.0, 1.0], [False, True]).low == 1
    found = epic_interval([0.0, 0.0, 0.0, 0.0, 1.0], [True, True, False, False, False])
    assert found.low <= np.sqrt(0.5) <= found.high  # many resamples lack the only different row


@pytest.mark.parametrize(("groups", "received"), [([0, 1], r"int64, \(2,\)"), ([0.0, 1.0, 2.0], "float64")])
def test_groups_are_a_number_for_each_row(groups, received):
    with pytest.raises(ValueError, match=rf"`groups` must be integers of shape \(3,\). Received {received}"):
        measure_intervals([1.0, 2.0, 3.0], [True, False, True], groups=groups)


def test_bad_input():
    with pytest.raises(ValueError, match="must have both True and False"):
        measure_intervals([1.0, 2.0], [True, True])
    with pytest.raises(ValueError, match="must have different numbers"):
        measure_intervals([1.0, 1.0], [True, False])
