"""Verdicts: which measures lead to which, with which words; and what they are worth on trainings that are known."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import verdicts
from benchmarks.training_outcomes import load_outcomes
from benchmarks.verdict_measures import RewardSetting
from vlmrm_gym.check.results import Cheat, CheatSearch, Choice, Measures, Row
from vlmrm_gym.check.verdict import Thresholds, best_first, classify, judge, list_gains

GOOD = Measures(auc=0.98, epic=0.3, control_auc=0.5, cheat_excess=-0.2, climb_success=1.0, climb_progress=1.0, gap=0.2)
FOUND = CheatSearch(
    judged=True,
    cheats=[Cheat(reward=0.9, frames=np.zeros((1, 4, 4, 3), np.uint8), failed={"torso upright": 1.25})],
    true_rewards=np.array([0.7, 0.8, 0.82]),
    scored=10,
)


def choice(**changes):
    own = Choice(prompt="kneel", baseline=None, alpha=0.0, model="tiny", look=None, camera="paper", combine_views=None)
    return replace(own, **changes)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "usable"),
        ({"auc": None}, "unknown"),
        ({"auc": 0.66}, "weak"),
        ({"auc": 0.64}, "hopeless"),
        ({"auc": 0.97, "control_auc": 0.96}, "hopeless"),
        ({"auc": 0.999, "control_auc": 0.91}, "usable"),
        ({"auc": 0.64, "control_auc": None}, "hopeless"),
        ({"climb_success": 0.4}, "exploitable"),
        ({"climb_success": 0.4, "climb_progress": 0.85}, "usable"),
        ({"climb_success": 0.0, "climb_progress": 0.3}, "flat"),
        ({"climb_success": None, "climb_progress": None}, "usable"),
        ({"auc": 0.8, "climb_success": 0.0}, "weak"),
    ],
)
def test_measures_have_one_verdict(changes, name):
    assert classify(replace(GOOD, **changes)) == name


def test_a_reward_that_agrees_by_chance_is_hopeless_whatever_else_is_good():
    rng = np.random.default_rng(0)
    for auc in rng.uniform(0, 0.6, 20):
        assert classify(replace(GOOD, auc=float(auc))) == "hopeless"


@pytest.mark.parametrize(
    ("changes", "said", "advised"),
    [
        ({"auc": None}, "No states are labelled as success or failure", "--success"),
        ({"auc": 0.6}, "60 % of all pairs", "--model"),
        ({"auc": 0.8}, "80 % of all pairs", "--prompt"),
        ({"climb_success": 0.1}, "10 % succeed", "several views"),
        ({"climb_progress": 0.25, "climb_success": 0.0}, "25 % of the way", "Explore longer"),
        ({"cheat_excess": 0.1}, "98 % of all pairs", "Train one seed"),
        ({"climb_success": None, "climb_progress": None}, "There was no climb", "Train one seed"),
    ],
)
def test_a_verdict_says_why_and_what_to_try(changes, said, advised):
    verdict = judge(replace(GOOD, **changes), FOUND)
    assert said in " ".join(verdict.reasons)
    assert advised in " ".join(verdict.next_steps)
    assert all(sentence.endswith((".", "?")) for sentence in [*verdict.reasons, *verdict.next_steps])


def test_an_exploitable_reward_names_the_cheat():
    reasons = " ".join(judge(replace(GOOD, climb_success=0.0), FOUND).reasons)
    assert "0.900" in reasons  # the cheat's reward
    assert "0.800" in reasons  # the median success's
    assert 'the condition "torso upright" by 1.250 times its margin' in reasons


def test_a_climb_may_lead_to_failures_where_the_search_finds_none():
    verdict = judge(replace(GOOD, climb_success=0.0), replace(FOUND, cheats=[]))
    assert verdict.name == "exploitable"
    assert "0 % succeed or nearly do" in " ".join(verdict.reasons)


def test_the_best_combination_comes_first():
    measured = {
        "usable, cheats pay": GOOD,
        "usable": replace(GOOD, cheat_excess=-0.5),
        "flat": replace(GOOD, climb_progress=0.1),
        "hopeless": replace(GOOD, auc=0.5),
        "unknown": replace(GOOD, auc=None),
    }
    rows = [Row(choice=choice(prompt=name), measures=own, verdict=judge(own, FOUND)) for name, own in measured.items()]
    assert [row.choice.prompt for row in best_first(rows)] == [
        "usable",
        "usable, cheats pay",
        "unknown",
        "flat",
        "hopeless",
    ]


def test_gains_are_said_of_every_setting_with_several_values():
    rows = [
        Row(choice=choice(camera=camera, alpha=alpha), measures=own, verdict=judge(own, FOUND))
        for camera, alpha, own in (
            ("side", 0.0, GOOD),
            ("side", 0.5, replace(GOOD, auc=0.95)),
            ("paper", 0.0, replace(GOOD, auc=0.6)),
        )
    ]
    alpha, camera = list_gains(best_first(rows))
    assert alpha.startswith("Alpha: 0, at best usable (AUC 0.980")
    assert "0.5, at best usable (AUC 0.950" in alpha
    assert "paper, at best hopeless (AUC 0.600" in camera


def test_every_training_has_a_measured_reward():
    known = verdicts.load()
    assert {one.setting for one in known} == {RewardSetting.of(outcome) for outcome in load_outcomes()}
    assert {one.works for one in known} == {True, False}


def test_thresholds_are_chosen_on_rows_alone():
    """Three rewards that work and two that do not, told apart by the climb: the limits lie between."""
    rows = [
        verdicts.Known(setting=None, measures=replace(GOOD, climb_success=climb), success=success)
        for climb, success in ((0.9, 1.0), (0.8, 0.9), (1.0, 0.5), (0.1, 0.0), (0.3, 0.2))
    ]
    chosen = verdicts.choose(rows)
    assert 0.3 < chosen.exploitable_success <= 0.8
    assert all(verdicts.is_right(row, chosen) for row in rows)
    assert not all(verdicts.is_right(row, Thresholds(exploitable_success=0.0)) for row in rows)
