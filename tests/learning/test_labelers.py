"""Labelers as values, and the answers of those that need nobody else."""

import copy
import json
import pickle
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest
from poles import is_second, make_pair, make_pairs

from vlmrm_gym.learning import (
    Answer,
    CallableLabeler,
    EndpointLabeler,
    GroundTruthLabeler,
    HumanLabeler,
    resolve_labeler,
)
from vlmrm_gym.states.scene_changes import SceneChange
from vlmrm_gym.states.states import States

LABELERS = [
    GroundTruthLabeler(mistake_rate=0.1, skip_rate=0.2, equal=1.0, temperature=2.0, gamma=0.9, seed=3),
    EndpointLabeler(model="m", base_url="http://127.0.0.1:1/v1", size=(240, 360), request={"temperature": 0}),
    HumanLabeler(port=8000, name="ada"),
]


def test_a_labeler_is_a_value():
    """JSON, pickle and copies give an equal one, of the same identity."""
    for labeler in LABELERS:
        kind = json.loads(labeler.answer_key)["kind"]
        for same in (
            resolve_labeler(json.loads(json.dumps({"kind": kind, **asdict(labeler)}))),
            pickle.loads(pickle.dumps(labeler)),
            copy.deepcopy(labeler),
        ):
            assert same == labeler
            assert same.answer_key == labeler.answer_key


def test_the_identity_is_what_decides_answers():
    assert EndpointLabeler(model="m", retries=1).answer_key == EndpointLabeler("m").answer_key
    assert EndpointLabeler(model="m", base_url="http://a/v1").answer_key != EndpointLabeler(model="m").answer_key
    assert HumanLabeler(port=1).answer_key == HumanLabeler(port=2).answer_key != HumanLabeler(name="ada").answer_key
    one, other = (CallableLabeler(partial(make_pairs, number)).answer_key for number in (1, 2))
    assert one != other
    assert "poles:make_pairs" in one


def test_a_labeler_can_be_said_in_many_ways():
    for given, kind in [
        ("ground_truth", GroundTruthLabeler),
        ({"kind": "ground_truth", "mistake_rate": 0.5}, GroundTruthLabeler),
        ({"name": "human", "fps": 5}, HumanLabeler),
        ("vlmrm_gym.learning.labelers:GroundTruthLabeler", GroundTruthLabeler),
        ("poles:is_second", CallableLabeler),
        (lambda pairs: pairs, CallableLabeler),
        (GroundTruthLabeler, GroundTruthLabeler),
    ]:
        assert type(resolve_labeler(given)) is kind


def test_a_wrong_labeler_is_refused():
    for given, error, said in [
        ("grond_truth", ValueError, "Did you mean 'ground_truth'"),
        ({"kind": "ground_truth", "mistake": 0.1}, TypeError, "Did you mean `mistake_rate`"),
        ({"kind": ["human"]}, ValueError, "`labeler` must be one of .* Received .'human'"),
        ({"kind": "endpoint"}, TypeError, "model"),
        ({"kind": "poles:is_second", "x": 1}, TypeError, "takes no settings"),
        (3, TypeError, "`labeler` must be"),
        ({"kind": "ground_truth", "mistake_rate": 2}, ValueError, "`mistake_rate` must be a number from 0 to 1"),
        ({"kind": "ground_truth", "gamma": 0}, ValueError, "`gamma`"),
        ({"kind": "endpoint", "model": ""}, ValueError, "`model`"),
        ({"kind": "endpoint", "model": "m", "max_total_tokens": 0}, ValueError, "`max_total_tokens`.*at least 1"),
        ({"kind": "endpoint", "model": "m", "stages": 3}, ValueError, "`stages`"),
        ({"kind": "endpoint", "model": "m", "price": [1]}, ValueError, "`price`"),
        ({"kind": "human", "fps": 0}, ValueError, "`fps`"),
    ]:
        with pytest.raises(error, match=said):
            resolve_labeler(given)


def test_a_callable_returns_a_number_or_an_answer_for_each_pair():
    pairs = make_pairs(3)
    answers = dict(CallableLabeler(lambda pairs: [0, None, Answer(preference=1, confidence=0.5)]).answers(pairs))
    assert [answers[i].preference for i in range(3)] == [0.0, None, 1.0]
    assert answers[2].confidence == 0.5
    for given in ([1.0], [1.0] * 3):
        with pytest.raises(ValueError, match="an answer for each of 2 pairs"):
            list(CallableLabeler(lambda pairs, given=given: given).answers(make_pairs(2)))


def test_the_key_of_a_pair_depends_on_all_that_is_seen():
    pairs = [make_pair(1, 2, "a"), make_pair(2, 1, "a"), make_pair(1, 2, "b"), make_pair(1, 2, "a", views="top")]
    for change in (SceneChange({"size": 2.0}), SceneChange({"size": np.float32([2])}), SceneChange({"mass": 2.0})):
        second = replace(pairs[0].second, states=States(pairs[0].second.states.rows, [change]))
        pairs.append(replace(pairs[0], second=second))
    assert len({pair.key for pair in pairs}) == len(pairs)
    assert make_pair(1, 2, "a").key == pairs[0].key


def test_importing_labelers_imports_nothing_that_they_may_not_need():
    code = "import sys, vlmrm_gym.learning; print([m for m in sys.argv[1:] if m in sys.modules])"
    names = ["torch", "PIL", "httpcore2", "starlette", "uvicorn", "open_clip"]
    ran = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def preferences(labeler, pairs):
    """A labeler's preferences, in the order of the pairs."""
    answers = dict(labeler.answers(pairs))
    return [answers[i].preference for i in range(len(pairs))]


def test_the_sum_of_grades_decides_and_without_them_that_of_task_rewards():
    """A myopic teacher weighs the last states most; sums within the threshold are equal."""
    for pair, settings, preference in [
        (make_pair(60, 10), {}, 1.0),
        (make_pair(60, 10, grade=lambda rows: rows[:, 1], draw=None), {}, 0.0),
        (make_pair(60, 10, grade=lambda rows: None), {}, 1.0),
        *((make_pair([10, 20], [20, 12]), {"equal": equal}, 0.0) for equal in (0, 1.9)),  # -30 and -32
        (make_pair([10, 20], [20, 12]), {"equal": 2}, 0.5),
        (make_pair([0, 0, 10], [15, 15, 5]), {}, 0.0),
        # -10 against -(15 * 0.09 + 15 * 0.3 + 5) = -10.85, and -(15 * 0.01 + 15 * 0.1 + 5) = -6.65
        (make_pair([0, 0, 10], [15, 15, 5]), {"gamma": 0.3}, 0.0),
        (make_pair([0, 0, 10], [15, 15, 5]), {"gamma": 0.1}, 1.0),
    ]:
        assert preferences(GroundTruthLabeler(**settings), [pair]) == [preference]


def test_a_pair_with_a_sum_that_is_nan_is_skipped_whatever_the_teachers_faults():
    known = make_pair(1, 60)
    unknown = replace(known, first=replace(known.first, task_rewards=np.array([np.nan])))
    for pair in (unknown, replace(known, grade=lambda rows: np.where(rows[:, 1] == 60, np.nan, 1))):
        for labeler in (GroundTruthLabeler(), GroundTruthLabeler(equal=100, temperature=1.0, mistake_rate=1.0)):
            assert preferences(labeler, [pair]) == [None]


def test_label_noise_has_its_rates():
    pairs = make_pairs(2_000)
    truth = np.array([is_second(pair) for pair in pairs])
    mistaken = np.array(preferences(GroundTruthLabeler(mistake_rate=0.1), pairs)) != truth
    assert mistaken.mean() == pytest.approx(0.1, abs=0.02)
    skipped = [answer is None for answer in preferences(GroundTruthLabeler(skip_rate=0.2), pairs)]
    assert np.mean(skipped) == pytest.approx(0.2, abs=0.03)
    same = [make_pair([10, x], [8, x]) for x in np.linspace(0, 1, 2_000)]
    warm = preferences(GroundTruthLabeler(temperature=2.0), same)
    assert np.mean(warm) == pytest.approx(1 / (1 + np.exp(-1)), abs=0.03)


def test_faults_depend_on_the_seed_and_the_pair_alone():
    pairs, labeler = make_pairs(100), GroundTruthLabeler(mistake_rate=0.3, skip_rate=0.2, temperature=20)
    answers = preferences(labeler, pairs)
    assert preferences(labeler, pairs[::-1])[::-1] == answers
    assert [preferences(labeler, [pair])[0] for pair in pairs[:20]] == answers[:20]
    assert preferences(GroundTruthLabeler(mistake_rate=0.3, skip_rate=0.2, temperature=20, seed=1), pairs) != answers
