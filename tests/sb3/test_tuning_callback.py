"""Unmodified algorithms of Stable-Baselines3 whose reward is tuned to successes."""

import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT
from stable_baselines3 import DQN, PPO, SAC

import vlmrm_gym
from vlmrm_gym.rendering import States
from vlmrm_gym.sb3 import DeferredReplayBuffer, DeferredRolloutBuffer, RewardHandle, TuningCallback, make_vec_env
from vlmrm_gym.tuning import TuningOptions

CART_POLE, MOUNTAIN_CAR = "VLMRM/CartPole-v1", "VLMRM/MountainCarContinuous-v0"
QUICK = {"every": 40, "draws": 20, "gradient_steps": 20, "options": TuningOptions(gap=3, learning_rate=1e-3)}


def make_envs(id=CART_POLE, num_envs=1):
    reward = vlmrm_gym.TunedCLIP(prompt=TASK_PROMPT, hidden_size=16)
    return make_vec_env(id, num_envs, reward=reward, task_reward_weight=1, episode_length=15, seed=0)


def off_policy(algorithm, envs, **options):
    own = {"learning_starts": 30, "buffer_size": 500, "batch_size": 8, "policy_kwargs": {"net_arch": [8]}}
    own |= {"replay_buffer_class": DeferredReplayBuffer, "seed": 0, "device": "cpu"}
    return algorithm("MlpPolicy", envs, **own, **options)


def fresh_rewards(envs, head):
    """What the states of the log are worth, drawn and scored again, with the task reward."""
    episodes = envs.envs.episode_log.episodes
    features = torch.from_numpy(envs.envs.scorer.features(States.concatenate([one.states for one in episodes])))
    return head(features).numpy() + np.concatenate([one.task_rewards for one in episodes])


def test_stored_rewards_are_those_of_the_newest_head():
    envs = make_envs()
    model, callback = off_policy(DQN, envs), TuningCallback(**QUICK)
    model.learn(150, callback=callback)
    head, buffer = callback.learner.head, model.replay_buffer
    assert envs.envs.head.version > 2
    assert model._n_updates > 0
    expected = fresh_rewards(envs, head)
    assert buffer.size() == len(expected) == 150
    np.testing.assert_allclose(buffer.rewards[:150, 0], expected, atol=1e-5)
    assert np.abs(expected - fresh_rewards(envs, make_envs().envs.head.head)).max() > 1e-4  # it is not CLIP's
    envs.close()


def test_until_the_first_success_rewards_are_those_of_clip():
    envs = make_envs(MOUNTAIN_CAR)
    model = off_policy(SAC, envs)
    model.learn(90, callback=TuningCallback(**QUICK))
    assert envs.envs.head.version == 1
    features = torch.from_numpy(model.replay_buffer.features)[:, 0]
    goal = vlmrm_gym.CLIPReward("tiny", prompt=TASK_PROMPT, device="cpu").head.goal
    task_rewards = np.concatenate([one.task_rewards for one in envs.envs.episode_log.episodes])
    expected = 0.05 * (features @ goal).numpy() + task_rewards
    np.testing.assert_allclose(model.replay_buffer.rewards[: len(expected), 0], expected, atol=1e-5)
    envs.close()


def test_an_on_policy_algorithm_learns_from_one_head_a_rollout():
    envs = make_envs(num_envs=2)
    model = PPO(
        "MlpPolicy",
        envs,
        rollout_buffer_class=DeferredRolloutBuffer,
        rollout_buffer_kwargs={"rewards": RewardHandle(envs)},
        n_steps=30,
        batch_size=30,
        n_epochs=1,
        seed=0,
        device="cpu",
    )
    callback = TuningCallback(**QUICK)
    model.learn(180, callback=callback, log_interval=1_000)
    assert callback.learner.newest.version > 2
    assert model._n_updates == 3
    names = {"episodes", "successes", "loss", "success_cosine", "failure_cosine", "head_version"}
    assert {f"tuning/{name}" for name in names} <= model.logger.name_to_value.keys()
    envs.close()


def test_a_training_that_continues_relabels_a_buffer_that_was_loaded(tmp_path):
    envs, callback = make_envs(), TuningCallback(**QUICK)
    model = off_policy(DQN, envs)
    model.learn(100, callback=callback)
    model.save_replay_buffer(tmp_path / "buffer")
    callback.learner.save(tmp_path / "tuner.zip")
    model.save(tmp_path / "model")
    before = model.replay_buffer.rewards[:100].copy()
    envs.close()
    envs, callback = make_envs(), TuningCallback(**QUICK)
    callback.bind(envs)
    callback.learner.load(tmp_path / "tuner.zip")
    model = DQN.load(tmp_path / "model", env=envs)
    model.load_replay_buffer(tmp_path / "buffer")
    assert not model.replay_buffer.is_settled
    model.learn(10, callback=callback, reset_num_timesteps=False)
    np.testing.assert_allclose(model.replay_buffer.rewards[:90], before[:90], atol=1e-6)
    envs.close()


@pytest.mark.parametrize("name", ["every", "draws", "gradient_steps"])
def test_counts_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"`{name}` must be an integer of at least 1. Received 0"):
        TuningCallback(**{name: 0})


def test_other_environments_are_refused():
    envs = make_vec_env(CART_POLE, 1, return_features=True)
    with pytest.raises(ValueError, match="with a reward that is yet to be tuned"):
        off_policy(DQN, envs).learn(10, callback=TuningCallback())
    envs.close()
