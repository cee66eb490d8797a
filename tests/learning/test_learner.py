"""Rounds without an RL library: which pairs are asked, what comes of the answers, and checkpoints."""

import tracemalloc
import zipfile

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT

import vlmrm_gym
from vlmrm_gym.data.replay import ReplayBuffer
from vlmrm_gym.learning import Answer, AnswersFile, FitOptions, GroundTruthLabeler, PreferenceLearner
from vlmrm_gym.learning.fitting import disagreement

CART_POLE = "VLMRM/CartPole-v1"
QUICK = FitOptions(epochs=5)


def make_envs(**options):
    reward = vlmrm_gym.Preference(prompt=TASK_PROMPT, hidden_size=16)
    return gym.make_vec(CART_POLE, 2, **{"reward": reward, "episode_length": 20, **options})


def play(envs, steps, buffer=None, seed=0):
    envs.action_space.seed(seed)
    observations, _ = envs.reset(seed=seed)
    for _ in range(steps):
        actions = envs.action_space.sample()
        next_observations, *results = envs.step(actions)
        if buffer is not None:
            buffer.add(observations, actions, next_observations, *results)
        observations = next_observations


def prefer_grade(pairs):
    """What the ground truth says of single pairs."""
    return [float(pair.grades[1].sum() > pair.grades[0].sum()) for pair in pairs]


@pytest.fixture
def envs():
    """Environments that have played two episodes each: 80 states."""
    made = make_envs()
    play(made, 41)
    yield made
    made.close()


def test_a_session_asks_about_states_of_the_log_and_makes_a_head(envs):
    asked = []

    def first_is_better(pairs):
        asked.extend(pairs)
        return prefer_grade(pairs)

    learner = PreferenceLearner(envs, first_is_better, segment_length=3, fit=QUICK)
    outcome = learner.run_round(30)
    rows = {row.tobytes() for episode in envs.episode_log.episodes for row in episode.states.rows}
    assert len(asked) == 30
    for pair in asked:
        assert pair.prompt == TASK_PROMPT
        for side, grades in zip((pair.first, pair.second), pair.grades, strict=True):
            assert {row.tobytes() for row in side.states.rows} <= rows
            position, angle = side.states.rows.T
            worse = np.maximum(np.rad2deg(np.abs(angle)), 12 * (np.abs(position) - 1.8) / 0.6)
            np.testing.assert_allclose(grades, 1 - worse / 180, atol=1e-12)
            assert side.task_rewards.shape == (3,)
    assert asked[0].frames[0].shape[:2] == (3, 1)
    assert outcome.verdict.accepted
    assert (learner.num_questions, envs.head.version, learner.head.prompt) == (30, 1, TASK_PROMPT)
    assert learner.comparisons.features.shape == (30, 2, 3, 1, 128)
    np.testing.assert_allclose(
        learner.comparisons.features[0, 0], envs.scorer.features(asked[0].first.states), atol=1e-5
    )
    assert outcome.scalars["answer_accuracy"] == 1
    assert outcome.scalars["questions"] == 30


def test_a_buffer_that_is_relabelled_has_the_rewards_of_the_newest_head():
    envs = make_envs()
    buffer = ReplayBuffer(1_000, envs)
    play(envs, 42, buffer)
    with pytest.raises(RuntimeError, match="Call `relabel`"):
        buffer.sample(4)
    learner = PreferenceLearner(envs, GroundTruthLabeler(), fit=QUICK)
    learner.run_round(30)
    buffer.relabel(envs.head)
    state = buffer.state_dict()
    np.testing.assert_allclose(state["rewards"].numpy(), learner.head(state["features"]).detach().numpy(), atol=1e-5)
    # The head is standardised with states of the log.
    assert (state["rewards"].mean(), state["rewards"].std()) == (pytest.approx(0, abs=0.4), pytest.approx(1, abs=0.4))
    envs.close()


def test_skipped_pairs_are_not_learned_and_answers_that_teach_nothing_make_no_head(envs):
    for answer, sentence in [
        (0.5, "All 30 answers are alike, 0.5. There is no head yet."),
        (None, "There are too few answers: 0 to fit, 0 held out. There is no head yet."),
    ]:
        learner = PreferenceLearner(envs, lambda pairs, answer=answer: [answer] * len(pairs), fit=QUICK)
        assert learner.run_round(30).verdict.reason == sentence
        assert envs.head.head is None

    def answer_half(pairs):
        return [None if i % 2 else Answer(preference=float(i % 4 == 0), confidence=0.5) for i in range(len(pairs))]

    learner = PreferenceLearner(envs, answer_half, fit=QUICK)
    learner.run_round(40)
    assert (len(learner.comparisons), learner.num_questions) == (20, 40)
    assert (learner.comparisons.confidences == 0.5).all()


def test_pairs_about_which_the_networks_disagree_are_preferred():
    """The chosen pairs have a higher disagreement than uniform ones, by the head that chose them."""
    found = {}
    for sampling in ("uniform", "disagreement"):
        envs = make_envs()
        play(envs, 41)
        learner = PreferenceLearner(envs, GroundTruthLabeler(), sampling=sampling, candidates=50, fit=QUICK)
        learner.run_round(15)
        head = learner.head
        assert len({pair.key for pair in learner.run_round(15).pairs}) == 15
        found[sampling] = disagreement(head, learner.comparisons.features[15:]).mean()
        envs.close()
    assert found["disagreement"] > 1.3 * found["uniform"]


def test_newer_states_are_preferred(envs):
    """Global random states are left alone."""
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    pairs = PreferenceLearner(envs, GroundTruthLabeler(), half_life=1, fit=QUICK).run_round(10).pairs
    assert {side.episode_index for pair in pairs for side in (pair.first, pair.second)} == {1}  # of episodes 0 and 1
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]


def test_a_pair_and_its_mirror_image_are_one_question():
    """Of 10 states, 30 pairs: some come again, also the other way round. Without a file they are kept in memory."""
    asked = []

    def labeler(pairs):
        asked.extend(frozenset(side.states.rows.tobytes() for side in (pair.first, pair.second)) for pair in pairs)
        return [0.5] * len(pairs)

    envs = make_envs(episode_length=5)
    play(envs, 6)
    learner = PreferenceLearner(envs, labeler, fit=QUICK)
    for _ in range(6):
        learner.run_round(5)
    assert 15 < len(asked) == len(set(asked)) < 30
    envs.close()


def test_a_labeler_that_raises_keeps_its_answers_and_is_asked_about_the_same_pairs(envs, tmp_path):
    calls = []

    def fails_once(pairs):
        for number, pair in enumerate(pairs):
            if number == 7 and "failed" not in calls:
                calls.append("failed")
                raise ConnectionError("no answer")
            calls.append(pair.key)
            yield from prefer_grade([pair])

    learner = PreferenceLearner(envs, fails_once, answers=tmp_path / "answers.db", fit=QUICK)
    with pytest.raises(ConnectionError):
        learner.run_round(20)
    outcome = learner.run_round(20)
    asked = [key for key in calls if key != "failed"]
    assert len(asked) == len(set(asked)) == 20
    assert set(asked) == {pair.key for pair in outcome.pairs}


def test_what_cannot_be_learned_from_is_refused(envs):
    plain = gym.make_vec(CART_POLE, 1, return_features=True)
    for make, message in [
        (lambda: PreferenceLearner(plain, GroundTruthLabeler()), "with a reward that is yet to be learned"),
        (lambda: PreferenceLearner(envs, GroundTruthLabeler(), sampling="random"), "`sampling` must be one of"),
        (lambda: PreferenceLearner(envs, GroundTruthLabeler()).run_round(41), "as the log has segments of 1, 80"),
        (lambda: PreferenceLearner(envs, GroundTruthLabeler(), segment_length=21).run_round(5), "longest episode, 20"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
    plain.close()


def test_a_learner_that_is_loaded_continues_as_one_that_was_not_stopped(tmp_path):
    """Also when the second round had begun before, and failed."""
    ended = []
    for stops in (False, True):
        with AnswersFile() as answers:
            envs = make_envs()
            learner = PreferenceLearner(envs, GroundTruthLabeler(mistake_rate=0.2), answers=answers, fit=QUICK)
            play(envs, 41)
            learner.run_round(20)
            if stops:
                learner.save(tmp_path / "learner")
                envs.close()
                envs = make_envs()
                learner = PreferenceLearner(envs, GroundTruthLabeler(mistake_rate=0.2), answers=answers, fit=QUICK)
                learner.load(tmp_path / "learner")
                assert envs.head.version == 1
            outcome = learner.run_round(20)
            generator = learner._rng.bit_generator.state
            ended.append((learner.head.to_bytes(), envs.head.version, generator, [pair.key for pair in outcome.pairs]))
            assert len(envs.episode_log) == 80
            envs.close()
    assert ended[0] == ended[1]
    assert learner.comparisons.features.shape[0] == 40


def test_checkpoints_of_others_are_refused_and_change_nothing(envs, tmp_path):
    learner = PreferenceLearner(envs, GroundTruthLabeler(), fit=QUICK)
    learner.run_round(20)
    learner.save(tmp_path / "learner")
    (tmp_path / "damaged").write_bytes((tmp_path / "learner").read_bytes()[:-500])
    other_envs = make_envs(reward=vlmrm_gym.Preference(prompt="a fallen pole"))
    for path, other, message in [
        ("learner", PreferenceLearner(other_envs, GroundTruthLabeler()), "its prompt is"),
        ("learner", PreferenceLearner(envs, GroundTruthLabeler(), segment_length=2), "its segment_length is 1"),
        ("damaged", PreferenceLearner(envs, GroundTruthLabeler()), "must be what PreferenceLearner.save wrote"),
    ]:
        before = other.newest.version, len(other.log)
        with pytest.raises(ValueError, match=message):
            other.load(tmp_path / path)
        assert (other.newest.version, len(other.log)) == before
    other_envs.close()


def test_a_compressed_file_is_refused_before_it_takes_memory(envs, tmp_path):
    for name in ("learner.json", "log.npz"):
        with zipfile.ZipFile(tmp_path / "bomb", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, bytes(10**8))
        for load in (PreferenceLearner(envs, GroundTruthLabeler()).load, envs.episode_log.load):
            tracemalloc.start()
            with pytest.raises(ValueError, match="must not be compressed"):
                load(tmp_path / "bomb")
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 10**7
