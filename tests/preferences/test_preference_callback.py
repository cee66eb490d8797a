"""Unmodified algorithms of Stable-Baselines3 that learn from comparisons."""

import threading

import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT
from sb3_contrib import TQC
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.vec_env import VecNormalize

import vlmrm_gym
from vlmrm_gym.preferences.exploration import StateEntropy
from vlmrm_gym.preferences.fitting import FitOptions
from vlmrm_gym.preferences.ground_truth import GroundTruthLabeler
from vlmrm_gym.preferences.pairs import Answer
from vlmrm_gym.sb3 import (
    DeferredReplayBuffer,
    DeferredRolloutBuffer,
    PreferenceCallback,
    RewardHandle,
    make_vec_env,
)

CART_POLE, MOUNTAIN_CAR = "VLMRM/CartPole-v1", "VLMRM/MountainCarContinuous-v0"
QUICK = FitOptions(epochs=5)


def make_envs(id=CART_POLE, **options):
    reward = vlmrm_gym.Preference(prompt=TASK_PROMPT, hidden_size=16)
    return make_vec_env(id, 2, reward=reward, episode_length=10, seed=0, **options)


def off_policy(algorithm, envs, **options):
    options = {
        "learning_starts": 40,
        "buffer_size": 1_000,
        "policy_kwargs": {"net_arch": [8]},
        "device": "cpu",
        **options,
    }
    return algorithm("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, batch_size=8, seed=0, **options)


def on_policy(envs, base):
    handle = {"rewards": RewardHandle(base)}
    options = {
        "n_steps": 15,
        "batch_size": 30,
        "n_epochs": 1,
        "policy_kwargs": {"net_arch": [8]},
        "device": "cpu",
        "seed": 0,
    }
    return PPO("MlpPolicy", envs, rollout_buffer_class=DeferredRolloutBuffer, rollout_buffer_kwargs=handle, **options)


@pytest.mark.parametrize(
    ("algorithm", "id"), [(DQN, CART_POLE), (SAC, MOUNTAIN_CAR), (TD3, MOUNTAIN_CAR), (TQC, MOUNTAIN_CAR)]
)
def test_off_policy_algorithms_wait_for_the_first_head_and_learn_from_the_newest(algorithm, id, tmp_path):
    envs = make_envs(id)
    model = off_policy(algorithm, envs)
    callback = PreferenceCallback(GroundTruthLabeler(), every=32, pairs=15, total=45, folder=tmp_path, fit=QUICK)
    held = []
    hold = callback._hold_session
    callback._hold_session = lambda: (held.append((model.num_timesteps, model._n_updates)), hold())
    model.learn(120, callback=callback)
    assert [steps for steps, _ in held] == [40, 72, 104]
    assert held[0][1] == 0 < held[1][1]
    assert callback.learner.num_questions == 45
    buffer, newest = model.replay_buffer, envs.envs.head
    features = torch.from_numpy(buffer._late.columns["features"][: buffer.size()])
    np.testing.assert_allclose(buffer.rewards[: buffer.size(), 0], newest.head(features).numpy(), atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"session_00{i}.png" for i in (1, 2, 3)]
    envs.close()


@pytest.mark.parametrize("normalizes", [False, True])
def test_on_policy_algorithms_explore_until_there_is_a_head(normalizes):
    """The steps of exploration count; every rollout has the rewards of one head."""
    base = make_envs()
    envs = VecNormalize(base, norm_reward=False) if normalizes else base
    model = on_policy(envs, base)
    callback = PreferenceCallback(GroundTruthLabeler(), every=40, pairs=15, total=30, fit=QUICK)
    model.learn(100, callback=callback)
    assert (model.num_timesteps, model._n_updates) == (100, 2)  # 40 at random, and 2 rollouts of 30
    assert callback.learner.num_questions == 30
    assert np.isfinite(model.rollout_buffer.rewards).all()
    assert model.rollout_buffer.rewards.std() > 0
    base.close()


def test_learning_waits_where_the_first_session_makes_no_head():
    """The first answers are all alike; random exploration goes on until the second session."""
    envs, updates, acting = make_envs(), [], []
    model = off_policy(DQN, envs)
    predict = model.predict
    model.predict = lambda *args, **options: (acting.append(model.num_timesteps), predict(*args, **options))[1]

    def answer(pairs):
        updates.append(model._n_updates)
        better = [float(pair.second.grades[0] > pair.first.grades[0]) for pair in pairs]
        return [0.5] * len(pairs) if len(updates) == 1 else better

    callback = PreferenceCallback(answer, every=32, pairs=15, total=30, fit=QUICK)
    model.learn(88, callback=callback)
    assert updates == [0, 0]
    assert model.learning_starts == 72  # the second session is after step 72
    assert min(acting) == 72
    assert model._n_updates > 0
    envs.close()


def entropy_by_numpy(features, reference):
    """Of features (N, V, D) among those of a reference: by all distances, sorted."""
    x, y = (own.reshape(len(own), -1).astype(np.float64) for own in (features, reference))
    fifth = [np.log(1 + np.sort(np.linalg.norm(y - row, axis=1))[5]) for row in x]
    own = [np.log(1 + np.sort(np.linalg.norm(y - row, axis=1))[5]) for row in y]
    return (np.array(fifth) - np.mean(own)) / np.std(own)


def test_state_entropy_is_the_distance_to_the_fifth_neighbour():
    rng = np.random.default_rng(0)
    visited, others = (rng.normal(size=(count, 2, 3)).astype(np.float32) for count in (40, 5_000))
    rewards = StateEntropy(visited)(torch.from_numpy(others)).numpy()
    np.testing.assert_allclose(rewards, entropy_by_numpy(others, visited), atol=1e-3)


def test_an_agent_may_explore_by_state_entropy_until_there_is_a_head():
    envs, updates, acting = make_envs(), [], []
    model = off_policy(DQN, envs)
    predict = model.predict
    model.predict = lambda *args, **options: (acting.append(model.num_timesteps), predict(*args, **options))[1]

    def answer(pairs):
        buffer = model.replay_buffer
        updates.append((model.num_timesteps, model._n_updates, buffer.rewards[: buffer.size(), 0].copy()))
        return [float(pair.second.grades[0] > pair.first.grades[0]) for pair in pairs]

    options = {"pairs": 30, "total": 30, "first": 100, "exploration": "state_entropy", "fit": QUICK}
    callback = PreferenceCallback(answer, every=32, **options)
    model.learn(120, callback=callback)
    ((steps, learned, paid),) = updates
    assert (steps, len(paid)) == (104, 100)
    assert learned > 0
    features = model.replay_buffer.features
    # The states of step 100 came after those of step 80 were the newest to compare with.
    np.testing.assert_allclose(paid, entropy_by_numpy(features[:100], features[:80]), atol=1e-3)
    features = torch.from_numpy(model.replay_buffer.features)
    np.testing.assert_allclose(
        model.replay_buffer.rewards[: len(features), 0], callback.learner.head(features), atol=1e-5
    )
    envs.close()


@pytest.mark.parametrize("first", [None, 40])
def test_exploration_by_state_entropy_needs_time(first):
    envs = make_envs()
    callback = PreferenceCallback(GroundTruthLabeler(), every=32, first=first, exploration="state_entropy")
    with pytest.raises(ValueError, match=r"`first` must be above `learning_starts` .* Received (None|40) and 40"):
        off_policy(DQN, envs).learn(100, callback=callback)
    envs.close()


def test_a_training_that_explored_by_state_entropy_goes_on():
    envs = make_envs()
    model = off_policy(DQN, envs, learning_starts=10)
    options = {"pairs": 10, "total": 20, "first": 15, "exploration": "state_entropy", "fit": QUICK}
    callback = PreferenceCallback(GroundTruthLabeler(), every=32, **options)
    model.learn(64, callback=callback)
    assert model.learning_starts >= 15  # it moved along until the first episodes had ended
    model.learn(32, callback=callback, reset_num_timesteps=False)
    envs.close()


def test_a_training_whose_answers_taught_nothing_ends_with_an_error():
    envs = make_envs()
    callback = PreferenceCallback(lambda pairs: [0.5] * len(pairs), every=20, pairs=10, total=20, fit=QUICK)
    with pytest.raises(RuntimeError, match=r"All 20 questions have been asked, and there is no head.* alike, 0.5"):
        off_policy(DQN, envs).learn(200, callback=callback)
    envs.close()


def test_a_first_session_waits_for_the_first_episode():
    envs = make_envs()
    model = off_policy(DQN, envs, learning_starts=4)
    callback = PreferenceCallback(GroundTruthLabeler(), every=30, pairs=10, total=10, fit=FitOptions(min_answers=5))
    model.learn(30, callback=callback)
    assert callback.learner.num_sessions == 1
    assert model.learning_starts == 24  # episodes of 10 steps end with step 20, rollouts with 16 and 24
    envs.close()


def test_figures_are_logged():
    envs = make_envs()
    model = off_policy(DQN, envs)
    callback = PreferenceCallback(GroundTruthLabeler(), every=30, pairs=15, total=30, fit=QUICK)
    model.learn(80, callback=callback, log_interval=1_000)
    recorded = {name for name in model.logger.name_to_value if name.startswith("preferences/")}
    assert recorded >= {f"preferences/{name}" for name in ("questions", "answers", "head_version", "accepted")}
    assert recorded >= {f"preferences/{name}" for name in ("loss", "held_out_loss", "answer_accuracy", "disagreement")}
    envs.close()


def test_sessions_that_do_not_fit_into_the_training_are_warned_of():
    envs = make_envs()
    callback = PreferenceCallback(GroundTruthLabeler(), every=30, pairs=15, total=75, fit=QUICK)
    with pytest.warns(UserWarning, match="room for 2 of 5 sessions in 70 steps"):
        off_policy(DQN, envs).learn(70, callback=callback)
    envs.close()


@pytest.mark.parametrize("name", ["every", "pairs", "total", "first"])
def test_counts_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"`{name}` must be an integer of at least 1"):
        PreferenceCallback(GroundTruthLabeler(), **{"every": 10, name: 0})


def test_other_environments_are_refused():
    envs = make_vec_env(CART_POLE, 1, return_features=True)
    model = off_policy(DQN, envs)
    with pytest.raises(ValueError, match="with a reward that is yet to be learned"):
        model.learn(10, callback=PreferenceCallback(GroundTruthLabeler(), every=10))
    envs.close()


class Late:
    """Answers by the grade in the background; its second session waits until it is let."""

    identity, wait = "late", False

    def __init__(self):
        self.may_answer, self.sessions = threading.Event(), 0

    def answers(self, pairs):
        self.sessions += 1
        assert self.sessions != 2 or self.may_answer.wait(60)
        for number, pair in enumerate(pairs):
            yield number, Answer(preference=float(pair.second.grades.sum() > pair.first.grades.sum()))


@pytest.mark.parametrize("algorithm", [DQN, PPO])
def test_a_training_goes_on_while_answers_are_late_and_learns_from_them(algorithm):
    """Also when they come after the last session. The first ones are waited for: without them there is no head."""
    envs, labeler = make_envs(), Late()
    model = on_policy(envs, envs) if algorithm is PPO else off_policy(DQN, envs)
    callback = PreferenceCallback(labeler, every=40, pairs=40, total=80, first=120)
    model.learn(300, callback=callback)
    learner = callback.learner
    assert labeler.sessions == 2
    assert (len(learner.comparisons), learner.num_waiting, learner.num_questions) == (40, 40, 80)
    assert not learner.has_news
    labeler.may_answer.set()
    learner.wait()
    assert learner.has_news
    model.learn(60, callback=callback, reset_num_timesteps=False)
    assert (len(learner.comparisons), learner.num_waiting, learner.num_questions) == (80, 0, 80)
    assert callback.sessions[-1].number > 2
    envs.close()


def test_a_training_without_answers_ends_with_an_error_also_if_they_are_late():
    class Silent(Late):
        def answers(self, pairs):
            yield from ()

    envs = make_envs()
    callback = PreferenceCallback(Silent(), every=20, pairs=10, total=20, fit=QUICK)
    with pytest.raises(RuntimeError, match=r"there is no head to learn with. There are too few answers: 0 to fit"):
        off_policy(DQN, envs).learn(400, callback=callback)
    envs.close()


def test_questions_that_a_budget_ended_are_not_counted():
    class Poor(Late):
        wait = True

        def answers(self, pairs):
            yield from ((i, Answer(preference=0.5)) for i in range(4))

    envs = make_envs()
    callback = PreferenceCallback(Poor(), every=20, pairs=10, total=20, fit=QUICK)
    with pytest.raises(RuntimeError, match="Only 8 of 20 questions have been asked, and there is no head"):
        off_policy(DQN, envs).learn(400, callback=callback)
    envs.close()
