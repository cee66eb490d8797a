"""Agreement of rewards with labels, its bootstrap intervals, and controls."""

import re
from itertools import combinations
from operator import itemgetter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrm_gym.data.metrics import auc, epic_distance
from vlmrm_gym.states import States
from vlmrm_gym.tools.check.measures import Control, Interval, _draw, best_control, chance_limit, measure_agreement
from vlmrm_gym.tools.check.pipeline import agreements, controls, summarise
from vlmrm_gym.tools.check.results import AdversarialSearch, Measures
from vlmrm_gym.tools.check.samples import Sample, Samples

SUCCESS = np.arange(40) % 4 == 0
REWARDS = np.random.default_rng(0).normal(size=40).round(1) + SUCCESS  # some tied


def test_an_interval_is_the_percentiles_of_the_measure_of_repeated_rows_and_the_seed_decides():
    """The measure of counted rows, against the plain measure of every resample."""
    found, again, other = (measure_agreement(REWARDS, SUCCESS, resamples=50, seed=seed) for seed in (3, 3, 1))
    assert found == again != other
    for name, measure in (("auc", auc), ("epic", epic_distance)):
        plain = [
            measure(np.repeat(REWARDS, counts), np.repeat(SUCCESS, counts))
            for counts in _draw(SUCCESS, np.arange(40), resamples=50, seed=3)
        ]
        own = getattr(found, name)
        assert own.value == measure(REWARDS, SUCCESS)
        assert (own.low, own.high) == pytest.approx(tuple(np.quantile(plain, [0.025, 0.975])), abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=20), st.integers(0, 99))
def test_groups_are_drawn_whole_and_every_resample_has_the_labels_of_the_original(rows, seed):
    groups, labels = map(np.array, zip(*rows, strict=True))
    counts = np.array(list(_draw(labels, groups, resamples=50, seed=seed)))
    for group in np.unique(groups):
        assert (np.ptp(counts[:, groups == group], axis=1) == 0).all()
    assert ((counts[:, labels].sum(axis=1) > 0) == labels.any()).all()
    assert ((counts[:, ~labels].sum(axis=1) > 0) == (~labels).any()).all()


@pytest.mark.parametrize("name", ["auc", "epic"])
def test_copies_of_rows_narrow_an_interval_unless_they_are_a_group(name):
    def width(rewards, success, **options):
        found = getattr(measure_agreement(rewards, success, **options), name)
        return found.high - found.low

    once = width(REWARDS, SUCCESS)
    copies = np.repeat(REWARDS, 9), np.repeat(SUCCESS, 9)
    assert width(*copies) == pytest.approx(once / 3, rel=0.2)
    assert width(*copies, groups=np.repeat(np.arange(40), 9)) == pytest.approx(once, rel=1e-6)


def test_most_intervals_hold_the_true_value():
    """Successes that are one standard deviation above failures: AUC is Phi(1 / sqrt(2)) = 0.76025."""
    held = 0
    for seed in range(100):
        rewards, success = np.random.default_rng(seed).normal(size=120), np.arange(120) < 60
        found = measure_agreement(rewards + success, success, resamples=150, seed=seed).auc
        held += found.low <= 0.76025 <= found.high
    assert 0.87 <= held / 100 <= 1


def test_separated_classes_and_resamples_without_differences():
    found = measure_agreement([0.0, 0.2, 0.8, 1.0], [False, False, True, True])
    assert (found.problem, found.successes, found.failures) == (None, 2, 2)
    assert (found.auc.value, found.auc.low, found.auc.high) == (1, 1, 1)
    found = measure_agreement([0.0, 0.0, 0.0, 0.0, 1.0], [True, True, False, False, False]).epic
    assert found.low <= np.sqrt(0.5) <= found.high  # many resamples lack the only different row


@pytest.mark.parametrize(
    ("rewards", "success", "problem"),
    [
        ([0.1, 0.2], [True, True], "All 2 states are successes: without failures there is nothing to compare"),
        ([0.1, 0.2], [False, False], "All 2 states are failures: without successes"),
        ([1e6, 1e6 * (1 + 1e-12)], [True, False], r"alike \(1e\+06\)"),
    ],
)
def test_what_cannot_be_measured_is_said(rewards, success, problem):
    found = measure_agreement(rewards, success)
    assert re.search(problem, found.problem)
    assert found.auc is found.epic is None


def test_the_limit_has_the_spread_of_all_orders_and_states_of_one_rollout_count_as_one():
    """Of 3 successes and 4 failures: so many standard deviations of the AUC of all 35 orders above chance.

    Chance exceeds 1.645 in 5% of the trials, and 2.241 in 5% / 4, as for one of four controls.
    """
    aucs = [auc(np.arange(7), np.isin(np.arange(7), chosen)) for chosen in combinations(range(7), 3)]
    for count, deviations in ((1, 1.645), (4, 2.241)):
        expected = pytest.approx(0.5 + deviations * np.std(aucs), abs=1e-4)
        assert chance_limit(np.arange(7) < 3, np.arange(7), count) == expected
        assert chance_limit(np.repeat(np.arange(7) < 3, 50), np.repeat(np.arange(7), 50), count) == expected


def test_of_the_controls_only_those_better_than_chance_count_and_a_reward_ranks_above_chance_and_them():
    by_chance, lower, higher = (
        Control(name="a control", auc=auc, chance=chance) for auc, chance in ((0.7, 0.75), (0.62, 0.6), (0.65, 0.6))
    )
    assert best_control([]) is None
    assert best_control([by_chance]) == 0.5
    assert best_control([by_chance, lower, higher]) == 0.65
    for low, control, ranks in ((0.51, None, True), (0.5, None, False), (0.6, 0.6, False), (0.61, 0.6, True)):
        assert Measures(auc=Interval(0.7, low, 0.8), control_auc=control).ranks is ranks


REWARD, SAME, USELESS = (itemgetter((slice(None), 0, number)) for number in range(3))


def sample(rewards, success):
    """States whose features, float (N,) or (N, 3), are rewards."""
    features = np.float32(rewards).reshape(len(success), 1, -1)
    return Sample(States(np.zeros((len(success), 1))), features, np.array(success))


def samples(visited, around=None, **more):
    return Samples(rollouts=[range(len(visited))], visited=visited, around=around, goals=None, **more)


def test_a_control_that_knows_the_task_counts_and_one_that_does_not_is_chance(rng):
    success = np.tile([True, False], 100)
    rewards = np.stack([success + rng.normal(0, 0.3, 200), success + rng.normal(0, 0.3, 200), rng.normal(size=200)], 1)
    prompts, black = {"the same": SAME, "useless": USELESS}, np.full((1, 1, 3), -9, dtype=np.float32)
    same, useless, blackened = controls(
        samples(sample([0.0], [True]), sample(rewards, success)), REWARD, prompts, black
    )
    assert (same.name, useless.name) == ("the same", "useless")
    assert same.auc > 0.95
    assert same.auc > same.chance == blackened.chance
    assert abs(useless.auc - 0.5) < useless.chance - 0.5
    assert blackened.auc == 0
    assert best_control([same, useless, blackened]) == same.auc
    assert controls(samples(sample(rewards, np.ones(200, dtype=bool))), REWARD, prompts, black) == []


def measures(own):
    return summarise(own, REWARD, agreements(own, REWARD, 0), AdversarialSearch(), [])


VISITED = sample([0.1, 0.3, 0.2, 0.4], [False, False, True, True])
"""Of its four pairs one is wrong."""


def test_the_headline_is_of_the_states_with_both_outcomes():
    """Those around the goal, unless the user passed rollouts. A constant reward is at chance."""
    around, won = sample([0.1, 0.2], [False, True]), sample([0.1, 0.2], [True, True])
    for own, value, states in (
        (samples(VISITED, around), 1, "states around the goal"),
        (samples(VISITED, won), 0.75, "rollouts"),
        (samples(VISITED, around, passed=True), 0.75, "rollouts"),
        (samples(sample([0.1], [False]), around, passed=True), 1, "states around the goal"),
        (samples(sample([0.5, 0.5], [False, True])), 0.5, "rollouts"),
    ):
        assert (measures(own).auc.value, measures(own).states) == (value, states)
        assert measures(own).ranks is (value > 0.5)
    own = samples(won, won)  # labels of one kind leave the agreement open
    assert measures(own).auc is measures(own).ranks is None


def test_the_excess_is_in_units_of_the_distance_between_successes_and_failures():
    own = samples(VISITED, sample([0.1, 0.3, 0.6, 0.8], [False, False, True, True]))
    found = AdversarialSearch(knows_success=True, exploits=[SimpleNamespace(reward=0.95)], median_success=0.7)
    excess = summarise(own, REWARD, agreements(own, REWARD, 0), found, []).exploit_excess
    assert excess == pytest.approx((0.95 - 0.7) / (0.7 - 0.2))
