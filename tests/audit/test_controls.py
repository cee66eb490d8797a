"""Controls: rewards that should be at chance, and which of them do better than chance."""

from itertools import combinations
from operator import itemgetter

import numpy as np
import pytest

from vlmrm_gym.audit.measures import Control, best_control, chance_limit
from vlmrm_gym.audit.pipeline import controls
from vlmrm_gym.audit.rewards import RewardView
from vlmrm_gym.audit.samples import Sample, Samples
from vlmrm_gym.metrics import auc
from vlmrm_gym.rendering import States
from vlmrm_gym.rollouts.play import Rollout

REWARD, SAME, USELESS = (RewardView(itemgetter((slice(None), 0, number))) for number in range(3))
BLACK = np.zeros((1, 1, 3), dtype=np.float32)


def make_samples(success, rewards, rollouts=1):
    """Samples that rollouts of equal length have visited, whose three features, float (N, 3), are rewards."""
    states = States(np.zeros((len(success), 1)))
    steps = len(success) // rollouts
    nothing = np.zeros(steps)
    rollout = Rollout(
        behaviour="random",
        states=states[:steps],
        initial=states[:1],
        observations=nothing,
        actions=nothing,
        task_rewards=nothing,
        terminated=nothing > 0,
        truncated=nothing > 0,
        success=None,
    )
    every = np.asarray(rewards, dtype=np.float32)[:, None]
    visited = Sample(states, every, np.asarray(success))
    return Samples(rollouts=[rollout] * rollouts, visited=visited, first=every[::steps], around=None, goals=None)


def controls_of(success, rewards, *, rollouts):
    prompts = {"the same": SAME, "useless": USELESS}
    return controls(make_samples(success, rewards, rollouts), REWARD, prompts, BLACK)


@pytest.mark.parametrize(("successes", "failures"), [(3, 40), (100, 200)])
def test_useless_rewards_rarely_have_a_control_that_counts(successes, failures, rng):
    """Of four controls without any relation to success, in at most 5 % of the trials one exceeds the limit."""
    success = np.arange(successes + failures) < successes
    limit = chance_limit(success, np.arange(len(success)), 4)
    best = [max(auc(rng.normal(size=len(success)), success) for _ in range(4)) for _ in range(1500)]
    assert np.mean(np.array(best) > limit) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1500)
    assert np.mean(best) > 0.5 + (limit - 0.5) / 4  # the highest of several is well above 0.5, without meaning anything


def test_the_limit_has_the_spread_of_all_orders():
    """Of 3 successes and 4 failures: 1.645 standard deviations of the AUC of all 35 orders above chance."""
    aucs = [auc(np.arange(7), np.isin(np.arange(7), chosen)) for chosen in combinations(range(7), 3)]
    assert chance_limit(np.arange(7) < 3, np.arange(7), 1) == pytest.approx(0.5 + 1.645 * np.std(aucs), abs=1e-4)


def test_states_of_one_rollout_count_as_one():
    success = np.repeat([True, False, False, False], 50)
    assert chance_limit(success, np.repeat(np.arange(4), 50), 1) == chance_limit(success[::50], np.arange(4), 1)
    assert chance_limit(success, np.arange(200), 1) < 0.6


def test_of_the_controls_only_those_better_than_chance_count():
    by_chance, lower, higher = (
        Control(name="a control", auc=auc, chance=chance, explanation="It knows.")
        for auc, chance in ((0.7, 0.75), (0.62, 0.6), (0.65, 0.6))
    )
    assert best_control([]) is None
    assert best_control([by_chance]) == 0.5
    assert best_control([by_chance, lower, higher]) == 0.65


def test_a_control_that_knows_the_task_counts_and_one_that_does_not_is_chance(rng):
    success = np.tile([True, False], 100)
    rewards = np.stack([success + rng.normal(0, 0.3, 200), success + rng.normal(0, 0.3, 200), rng.normal(size=200)], 1)
    same, useless, black, frozen = controls_of(success, rewards, rollouts=100)
    assert (same.name, useless.name) == ("the same", "useless")
    assert same.auc > 0.95
    assert same.auc > same.chance == black.chance
    assert abs(useless.auc - 0.5) < useless.chance - 0.5
    assert frozen.auc == 0.5
    assert best_control([same, useless, black, frozen]) == same.auc


@pytest.mark.parametrize("success", [np.ones(4, dtype=bool), np.zeros(4, dtype=bool)])
def test_without_both_outcomes_there_are_no_controls(success):
    assert controls_of(success, np.ones((4, 3)), rollouts=2) == []
