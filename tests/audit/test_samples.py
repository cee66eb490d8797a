"""Which states the measures of a reward are about, and how scenes encode them."""

from dataclasses import replace

import numpy as np
import pytest

from vlmrm_gym.audit.measures import Interval
from vlmrm_gym.audit.pipeline import agreements, summarise
from vlmrm_gym.audit.results import AdversarialSearch, Measures
from vlmrm_gym.audit.rewards import RewardView
from vlmrm_gym.audit.samples import Sample, Samples
from vlmrm_gym.rendering import States

REWARD = RewardView(lambda features: features[:, 0, 0])


def sample(rewards, success):
    states = States(np.zeros((len(rewards), 1)))
    return Sample(states, np.float32(rewards)[:, None, None], np.array(success))


def samples(visited, around):
    return Samples(rollouts=[visited.states], visited=visited, first=np.zeros((1, 1, 1)), around=around, goals=None)


def measures(own):
    return summarise(own, REWARD, agreements(own, REWARD, 0), AdversarialSearch(), [])


@pytest.mark.parametrize("outcome", [True, False])
def test_without_successes_and_failures_around_the_goal_the_rollouts_decide(outcome):
    """A rare success may be in no state that was drawn from the rollouts."""
    visited = sample([0.1, 0.3, 0.2, 0.4], [False, False, True, True])
    own = samples(visited, sample([0.1, 0.2], [outcome, outcome]))
    assert own.labelled is visited
    assert measures(own).auc.value == 0.75  # of four pairs one is wrong
    assert measures(own).states == "rollouts"
    both = samples(visited, sample([0.1, 0.2], [False, True]))
    assert both.labelled is both.around
    assert measures(both).auc.value == 1
    assert measures(both).states == "states around the goal"


def test_the_measures_are_of_the_rollouts_that_the_user_passed():
    """Unless success is the same for all of them."""
    around = sample([0.1, 0.2], [False, True])
    passed = replace(samples(sample([0.1, 0.3, 0.2, 0.4], [False, False, True, True]), around), passed=True)
    assert (measures(passed).auc.value, measures(passed).states) == (0.75, "rollouts")
    failed = replace(samples(sample([0.1, 0.3], [False, False]), around), passed=True)
    assert (measures(failed).auc.value, measures(failed).states) == (1, "states around the goal")


def test_a_constant_reward_does_not_rank():
    own = samples(sample([0.5, 0.5, 0.5], [False, True, True]), None)
    assert measures(own).auc.value == 0.5
    assert measures(own).epic is None
    assert measures(own).ranks is False


def test_labels_of_one_kind_leave_the_agreement_open():
    own = samples(sample([0.1, 0.2], [True, True]), sample([0.1, 0.2], [True, True]))
    assert measures(own).auc is measures(own).ranks is None


@pytest.mark.parametrize(
    ("low", "control", "ranks"),
    [(0.51, None, True), (0.5, None, False), (0.51, 0.5, True), (0.6, 0.6, False), (0.61, 0.6, True)],
)
def test_a_reward_ranks_if_its_interval_is_above_chance_and_the_controls(low, control, ranks):
    assert Measures(auc=Interval(0.7, low, 0.8), control_auc=control).ranks is ranks
