"""Unmodified algorithms of Stable-Baselines3 that learn from comparisons."""

import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT
from sb3_contrib import TQC
from sb3_helpers import off_policy, on_policy
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.vec_env import VecNormalize

import vlmrm_gym
from vlmrm_gym.learning import Answer, FitOptions, GroundTruthLabeler
from vlmrm_gym.sb3 import PreferenceCallback, RewardHandle, make_vec_env

CART_POLE, MOUNTAIN_CAR = "VLMRM/CartPole-v1", "VLMRM/MountainCarContinuous-v0"
QUICK = FitOptions(epochs=5)


def make_envs(id=CART_POLE, **options):
    reward = vlmrm_gym.Preference(prompt=TASK_PROMPT, hidden_size=16)
    return make_vec_env(id, 2, reward=reward, episode_length=10, seed=0, **options)


@pytest.mark.parametrize(
    ("algorithm", "id"),
    [
        (DQN, CART_POLE),
        *(pytest.param(one, MOUNTAIN_CAR, marks=pytest.mark.slow) for one in (SAC, TD3, TQC)),
    ],
)
def test_off_policy_algorithms_wait_for_the_first_head_and_learn_from_the_newest(algorithm, id, tmp_path):
    envs = make_envs(id)
    model = off_policy(algorithm, envs, learning_starts=40)
    callback = PreferenceCallback(GroundTruthLabeler(), every=32, pairs=15, total=45, folder=tmp_path, fit=QUICK)
    held = []
    hold = callback._hold_round
    callback._hold_round = lambda: (held.append((model.num_timesteps, model._n_updates)), hold())
    model.learn(120, callback=callback, log_interval=1_000)
    recorded = {name for name in model.logger.name_to_value if name.startswith("preferences/")}
    assert recorded >= {f"preferences/{name}" for name in ("questions", "answers", "head_version", "accepted", "loss")}
    assert recorded >= {f"preferences/{name}" for name in ("held_out_loss", "answer_accuracy", "disagreement")}
    assert [steps for steps, _ in held] == [40, 72, 104]
    assert held[0][1] == 0 < held[1][1]
    assert callback.learner.num_questions == 45
    buffer, newest = model.replay_buffer, envs.envs.head
    features = torch.from_numpy(buffer._late.columns["features"][: buffer.size()])
    np.testing.assert_allclose(buffer.rewards[: buffer.size(), 0], newest.head(features).numpy(), atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"round_00{i}.png" for i in (1, 2, 3)]
    envs.close()


def test_on_policy_algorithms_explore_until_there_is_a_head():
    """The steps of exploration count; every rollout has the rewards of one head. Also under a VecNormalize."""
    base = make_envs()
    normalised, handle = VecNormalize(base, norm_reward=False), RewardHandle(base)
    model = on_policy(PPO, normalised, 15, handle=handle, batch_size=30, n_epochs=1, seed=0)
    callback = PreferenceCallback(GroundTruthLabeler(), every=40, pairs=15, total=30, fit=QUICK)
    model.learn(100, callback=callback)
    assert (model.num_timesteps, model._n_updates) == (100, 2)  # 40 at random, and 2 rollouts of 30
    assert callback.learner.num_questions == 30
    assert np.isfinite(model.rollout_buffer.rewards).all()
    assert model.rollout_buffer.rewards.std() > 0
    base.close()


def test_learning_waits_where_the_first_round_makes_no_head():
    """The first answers are all alike; random exploration goes on until the second round."""
    envs, updates, acting = make_envs(), [], []
    model = off_policy(DQN, envs, learning_starts=40)
    predict = model.predict
    model.predict = lambda *args, **options: (acting.append(model.num_timesteps), predict(*args, **options))[1]

    def answer(pairs):
        updates.append(model._n_updates)
        better = [float(pair.grades[1][0] > pair.grades[0][0]) for pair in pairs]
        return [0.5] * len(pairs) if len(updates) == 1 else better

    callback = PreferenceCallback(answer, every=32, pairs=15, total=30, fit=QUICK)
    model.learn(88, callback=callback)
    assert updates == [0, 0]
    assert model.learning_starts == 72  # the second round is after step 72
    assert min(acting) == 72
    assert model._n_updates > 0
    envs.close()


def test_a_training_whose_answers_taught_nothing_ends_with_an_error():
    """Questions that a budget ended are not counted; rounds that do not fit into the training are warned of."""

    class Poor:
        answer_key = "poor"

        def answers(self, pairs):
            yield from ((i, Answer(preference=0.5)) for i in range(4))

    for labeler, steps, message in [
        (lambda pairs: [0.5] * len(pairs), 200, r"All 20 questions have been asked, and there is no head.* alike, 0.5"),
        (Poor(), 400, "Only 8 of 20 questions have been asked, and there is no head"),
    ]:
        envs = make_envs()
        callback = PreferenceCallback(labeler, every=20, pairs=10, total=20, fit=QUICK)
        with pytest.raises(RuntimeError, match=message):
            off_policy(DQN, envs, learning_starts=40).learn(steps, callback=callback)
        envs.close()
    envs = make_envs()
    callback = PreferenceCallback(GroundTruthLabeler(), every=30, pairs=15, total=75, fit=QUICK)
    with pytest.warns(UserWarning, match="room for 2 of 5 rounds in 70 steps"):
        off_policy(DQN, envs, learning_starts=40).learn(70, callback=callback)
    envs.close()


def test_a_first_round_waits_for_the_first_episode():
    envs = make_envs()
    model = off_policy(DQN, envs, learning_starts=4)
    callback = PreferenceCallback(GroundTruthLabeler(), every=30, pairs=10, total=10, fit=FitOptions(min_answers=5))
    model.learn(30, callback=callback)
    assert callback.learner.num_rounds == 1
    assert model.learning_starts == 24  # episodes of 10 steps end with step 20, rollouts with 16 and 24
    envs.close()


def test_counts_and_environments_of_other_kinds_are_refused():
    for name in ("every", "pairs", "total", "first"):
        with pytest.raises(ValueError, match=f"`{name}` must be an integer of at least 1"):
            PreferenceCallback(GroundTruthLabeler(), **{"every": 10, name: 0})
    envs = make_vec_env(CART_POLE, 1, return_features=True)
    with pytest.raises(ValueError, match="with a reward that is yet to be learned"):
        off_policy(DQN, envs, learning_starts=40).learn(10, callback=PreferenceCallback(GroundTruthLabeler(), every=10))
    envs.close()
