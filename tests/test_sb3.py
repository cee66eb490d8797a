"""Unmodified Stable-Baselines3 learns from rewards that come at an episode's end."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from counting_env import Counting
from reward_models import PixelReward
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

import vlmrm_gym
from vlmrm_gym import CLIPReward
from vlmrm_gym.rendering.classic_control import CartPoleRenderer, MountainCarRenderer
from vlmrm_gym.sb3 import (
    DeferredReplayBuffer,
    DeferredRolloutBuffer,
    HeldActionNoise,
    LogReturns,
    NormalizedObservations,
    RewardSource,
    VLMVecEnv,
    make_vec_env,
)
from vlmrm_gym.tasks import TASKS

PROMPTS = {task.id: task.prompt for task in TASKS}
CARTPOLE, MOUNTAIN_CAR = "VLMRM/CartPole-v1", "VLMRM/MountainCarContinuous-v0"


def score_again(env_id, next_observations):
    """The rewards of observations that have the whole state in them."""
    score = CLIPReward(prompt=PROMPTS[env_id])
    if env_id == CARTPOLE:
        renderer, states = CartPoleRenderer(*score.size_to_draw(400, 600)), next_observations[:, [0, 2]]
    else:
        renderer = MountainCarRenderer(*score.size_to_draw(400, 600), textured=False)
        states = next_observations[:, :1]
    return score(renderer.render(states))


@pytest.mark.parametrize("algorithm", [DQN, QRDQN, SAC, TD3, DDPG, TQC, CrossQ], ids=lambda a: a.__name__)
def test_off_policy_algorithms_learn_from_the_rewards_of_their_transitions(algorithm):
    """Stored rewards are those of the stored states, scored again."""
    env_id = CARTPOLE if algorithm in (DQN, QRDQN) else MOUNTAIN_CAR
    envs = make_vec_env(
        env_id,
        num_envs=2,
        seed=0,
        episode_length=25,
        overlap=True,
        **({} if env_id == CARTPOLE else {"textured": False}),
    )
    model = algorithm(
        "MlpPolicy",
        envs,
        replay_buffer_class=DeferredReplayBuffer,
        buffer_size=1_000,
        learning_starts=120,
        batch_size=16,
        train_freq=4,
        policy_kwargs={"net_arch": [16]},
        seed=0,
        device="cpu",
    )
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    model.learn(260, callback=LogReturns())
    assert any(not torch.equal(value, before[name]) for name, value in model.policy.state_dict().items())
    buffer = model.replay_buffer
    assert buffer.size() >= 200
    assert buffer.size() + buffer.held == model.num_timesteps
    stored = buffer.next_observations[: buffer.size(), 0]
    np.testing.assert_allclose(buffer.rewards[: buffer.size(), 0], score_again(env_id, stored), atol=1e-4)
    np.testing.assert_array_equal(buffer.dones[: buffer.size()].sum(), buffer.size() // 25)
    np.testing.assert_array_equal(buffer.timeouts[: buffer.size()], buffer.dones[: buffer.size()])
    assert np.isfinite([episode["r"] for episode in model.ep_info_buffer]).all()
    assert len(model.ep_info_buffer) >= 8
    envs.close()


@pytest.mark.parametrize("algorithm", [PPO, A2C])
@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept")  # Stable-Baselines3, at time limits
def test_on_policy_algorithms_get_their_rewards_before_advantages(algorithm):
    envs = make_vec_env(CARTPOLE, num_envs=2, seed=0, episode_length=25)
    options = {"batch_size": 20} if algorithm is PPO else {}
    model = algorithm(
        "MlpPolicy",
        envs,
        n_steps=40,
        gamma=0.5,
        rollout_buffer_class=DeferredRolloutBuffer,
        rollout_buffer_kwargs={"rewards": RewardSource(envs)},
        policy_kwargs={"net_arch": [16]},
        seed=0,
        device="cpu",
        **options,
    )
    seen = []

    class Look(BaseCallback):
        def _on_step(self):
            return True

        def _on_rollout_end(self):
            seen.append((self.model.rollout_buffer.observations.copy(), self.model.rollout_buffer.rewards.copy()))

    model.learn(160, callback=Look())
    assert len(seen) == 2
    for observations, rewards in seen:
        for number in range(2):
            # The observation of a step is what the step before led to, except where an episode begins.
            own = score_again(CARTPOLE, observations[1:, number])
            agree = np.isclose(rewards[:-1, number], own, atol=1e-4)
            assert agree.sum() >= 37
    assert np.isfinite(model.policy.state_dict()["value_net.weight"]).all()
    envs.close()


def test_without_the_buffer_the_rewards_are_nan():
    envs = make_vec_env(CARTPOLE, num_envs=1, episode_length=5)
    envs.reset()
    assert np.isnan(envs.step(np.zeros(1, dtype=int))[1]).all()
    envs.close()


def counting(lengths, monkeypatch, **options):
    monkeypatch.setattr("vlmrm_gym.vector.CLIPReward", PixelReward)
    bases = [Counting(own, first=1_000 * number) for number, own in enumerate(lengths)]
    envs = vlmrm_gym.VLMRewardVectorEnv([lambda b=b: b for b in bases], "count", autoreset_mode="SameStep", **options)
    return VLMVecEnv(envs), bases


def dqn(envs):
    return DQN(
        "MlpPolicy",
        envs,
        replay_buffer_class=DeferredReplayBuffer,
        buffer_size=500,
        learning_starts=10_000,
        policy_kwargs={"net_arch": [16]},
        device="cpu",
    )


def test_a_training_that_is_cut_off_and_goes_on_gives_no_transition_anothers_reward(monkeypatch):
    """A callback ends `learn` before the last transition is stored, and `learn` resets in the middle of episodes."""
    envs, _ = counting([[7], [4, 5]], monkeypatch)
    model = dqn(envs)

    class StopAt(BaseCallback):
        def _on_step(self):
            return self.n_calls < 10

    for _ in range(3):
        model.learn(1_000, callback=StopAt(), reset_num_timesteps=False)
    model.learn(200)
    buffer = model.replay_buffer
    size = buffer.size()
    assert size > 150
    np.testing.assert_array_equal(buffer.rewards[:size, 0], buffer.next_observations[:size, 0, 0])
    assert len(np.unique(buffer.rewards[:size])) == size
    envs.close()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("how", ["loaded", "set"])
def test_other_environments_do_not_reward_what_was_held_back_of_the_first(how, overlap, monkeypatch, tmp_path):
    first, _ = counting([[11], [11]], monkeypatch, overlap=overlap)
    others, bases = counting([[9], [13], [7]] if how == "loaded" else [[9], [13]], monkeypatch, overlap=overlap)
    for base in bases:
        base.count += 100_000
    model = dqn(first)
    model.learn(50)
    assert model.replay_buffer.held
    before = model.replay_buffer.size()
    if how == "loaded":
        model.save(tmp_path / "model")
        model.save_replay_buffer(tmp_path / "buffer")
        model = DQN.load(tmp_path / "model", env=others)
        model.load_replay_buffer(tmp_path / "buffer")
    else:
        model.set_env(others)
    model.learn(180)
    buffer = model.replay_buffer
    np.testing.assert_array_equal(buffer.rewards[: buffer.size(), 0], buffer.next_observations[: buffer.size(), 0, 0])
    assert buffer.size() - before + buffer.held == model.num_timesteps
    first.close()
    others.close()


@pytest.mark.parametrize("scoring", ["episode", "step"])
def test_rollouts_have_every_reward_once_and_other_algorithms_get_none_of_their_placeholders(scoring, monkeypatch):
    envs, _ = counting([[7], [4, 5]], monkeypatch, scoring=scoring)
    seen = []

    class Look(BaseCallback):
        def _on_step(self):
            return True

        def _on_rollout_end(self):
            buffer = self.model.rollout_buffer
            goes_on = buffer.episode_starts[1:] == 0  # rows after a reset do not say what the step before led to
            seen.append((buffer.rewards[:-1][goes_on], buffer.observations[1:, :, 0][goes_on]))

    for n_steps in (8, 13):  # one after the other, on the same environments
        options = {"rewards": RewardSource(envs)}
        model = A2C(
            "MlpPolicy",
            envs,
            n_steps=n_steps,
            rollout_buffer_class=DeferredRolloutBuffer,
            rollout_buffer_kwargs=options,
            device="cpu",
        )
        model.learn(4 * 2 * n_steps, callback=Look())
    assert len(seen) == 8
    for rewards, led_to in seen:
        assert len(rewards)
        np.testing.assert_array_equal(rewards, led_to)
    rewards = envs.step(np.zeros(2, dtype=int))[1]
    assert np.isnan(rewards).all() if scoring == "episode" else (rewards > 0).all()
    envs.close()


def test_an_episode_that_a_reset_cuts_off_is_not_summed_up(monkeypatch):
    envs, _ = counting([[7]], monkeypatch)
    envs.reset()
    lengths = []
    for step in range(24):
        if step == 3:
            envs.reset()
        (info,) = envs.step(np.zeros(1, dtype=int))[3]
        lengths += [info["episode"]["l"]] if "episode" in info else []
    assert lengths == [7, 7, 7]
    envs.close()


def test_stable_baselines_evaluates_by_scored_returns():
    envs = make_vec_env("vlmrm_gym:" + CARTPOLE, num_envs=2, seed=0, episode_length=10)
    assert envs.success_share == 1.0
    model = dqn(envs)
    returns, lengths = evaluate_policy(model, envs, n_eval_episodes=4, return_episode_rewards=True)
    assert lengths == [10] * 4
    assert all(0 < value <= 10 for value in returns)
    envs.close()


def test_other_wrappers_summaries_do_not_hide_ours(tmp_path):
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        envs = VecMonitor(make_vec_env(CARTPOLE, num_envs=1, seed=0, episode_length=10))
    model = dqn(envs)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(40, callback=LogReturns(), log_interval=2)
    model.logger.close()
    assert "rollout/task_return" in (tmp_path / "progress.csv").read_text()
    envs.close()


def test_episodes_are_summed_up_when_their_rewards_are_there(monkeypatch):
    envs, bases = counting([[3], [2, 5]], monkeypatch, overlap=True)
    envs.reset()
    summaries = [[], []]
    for _ in range(40):
        for own, info in zip(summaries, envs.step(np.zeros(2, dtype=int))[3], strict=True):
            own.extend([info["episode"]] if "episode" in info else [])
    for base, own in zip(bases, summaries, strict=True):
        expected, begun = [], 0
        for length in base.lengths * 20:
            expected.append((float(sum(base.led_to[begun : begun + length])), length, 0.5 * length))
            begun += length
        assert len(own) >= 9
        assert [(one["r"], one["l"], one["task_return"]) for one in own] == expected[: len(own)]
    envs.close()


def test_a_model_is_saved_and_loaded(tmp_path):
    envs = make_vec_env(CARTPOLE, num_envs=2, episode_length=10)
    model = DQN("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, learning_starts=30, device="cpu")
    model.learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    again = DQN.load(tmp_path / "model", env=envs)
    again.load_replay_buffer(tmp_path / "buffer")
    assert again.replay_buffer.size() == model.replay_buffer.size() > 0
    again.learn(60)

    on_policy = PPO(
        "MlpPolicy",
        envs,
        n_steps=20,
        batch_size=20,
        device="cpu",
        rollout_buffer_class=DeferredRolloutBuffer,
        rollout_buffer_kwargs={"rewards": RewardSource(envs)},
    )
    on_policy.save(tmp_path / "ppo")
    assert PPO.load(tmp_path / "ppo").predict(np.zeros(4, dtype=np.float32))[0] in (0, 1)
    with pytest.raises(ValueError, match="`rewards` must be a RewardSource with its environments"):
        PPO.load(tmp_path / "ppo", env=envs).learn(40)
    PPO.load(tmp_path / "ppo", env=envs, rollout_buffer_kwargs={"rewards": RewardSource(envs)}).learn(40)
    envs.close()


def test_what_is_logged(tmp_path):
    envs = make_vec_env(CARTPOLE, num_envs=2, seed=0, episode_length=10)
    model = DQN("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, learning_starts=10_000, device="cpu")
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(120, callback=LogReturns(), log_interval=4)
    model.logger.close()
    header, *_ = (tmp_path / "progress.csv").read_text().splitlines()
    for name in ("ep_rew_mean", "vlm_return", "task_return", "success_share", "success_rate"):
        assert f"rollout/{name}" in header.split(",")
    assert envs.render().shape[2] == 3
    envs.close()


def test_rewards_that_have_not_come_are_not_normalized():
    envs = VecNormalize(make_vec_env(CARTPOLE, num_envs=1, episode_length=10))
    with pytest.raises(ValueError, match="`norm_reward` of VecNormalize must be False"):
        DQN("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, learning_starts=20, device="cpu").learn(40)
    with pytest.raises(ValueError, match="`norm_reward` of VecNormalize must be False"):
        RewardSource(envs)
    envs.norm_reward = False
    assert RewardSource(envs).envs is envs.venv
    DQN("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, learning_starts=20, device="cpu").learn(40)
    envs.close()


def test_bad_input(monkeypatch):
    envs = make_vec_env(CARTPOLE, num_envs=1, episode_length=50)
    options = {"replay_buffer_class": DeferredReplayBuffer, "learning_starts": 5, "device": "cpu"}
    with pytest.raises(RuntimeError, match=r"nothing to sample: \d+ transitions wait .*Set `learning_starts`"):
        DQN("MlpPolicy", envs, **options).learn(20)
    with pytest.raises(ValueError, match="`optimize_memory_usage` must be False with DeferredReplayBuffer"):
        DQN("MlpPolicy", envs, optimize_memory_usage=True, **options)
    with pytest.raises(RuntimeError, match="DeferredReplayBuffer needs the infos of a VLMVecEnv"):
        DQN("MlpPolicy", "CartPole-v1", **options).learn(20)
    with pytest.raises(ValueError, match="`autoreset_mode` cannot be chosen"):
        make_vec_env(CARTPOLE, autoreset_mode="NextStep")
    with pytest.raises(ValueError, match="`envs` must reset in the same step"):
        VLMVecEnv(envs.envs.__class__([Counting], "an upright pole"))
    with pytest.raises(NotImplementedError, match="no methods to call"):
        envs.env_method("reset")
    with pytest.raises(ValueError, match=r"`id` must be a registered ID of this package.*Received 'CartPole-v1'"):
        make_vec_env("CartPole-v1")
    with pytest.raises(ValueError, match=r"`seed` must be an integer of at least 0. Received 'a'"):
        make_vec_env(CARTPOLE, seed="a")
    with pytest.raises(ValueError, match="`envs` must be a vector environment"):
        VLMVecEnv(Counting())
    plain = VLMVecEnv(gym.vector.SyncVectorEnv([Counting], autoreset_mode="SameStep"))
    plain.reset()
    with pytest.raises(RuntimeError, match="`envs` must be a VLMRewardVectorEnv"):
        plain.step(np.zeros(1, dtype=int))
    pairs = gym.spaces.Dict(a=envs.observation_space, b=envs.observation_space)
    with pytest.raises(ValueError, match="`observation_space` must be of one array"):
        DeferredReplayBuffer(10, pairs, envs.action_space)
    with pytest.raises(ValueError, match="`envs` must be a VLMVecEnv"):
        RewardSource(envs.envs)
    rollouts = {"rollout_buffer_class": DeferredRolloutBuffer, "device": "cpu"}
    with pytest.raises(ValueError, match=r"`rewards` must be a RewardSource.* Received None"):
        A2C("MlpPolicy", envs, **rollouts)
    model = A2C("MlpPolicy", envs, rollout_buffer_kwargs={"rewards": RewardSource(envs)}, **rollouts)
    others = make_vec_env(CARTPOLE, num_envs=1, episode_length=50)
    model.set_env(others)
    with pytest.raises(ValueError, match="`rewards` must be a RewardSource of the environments that the algorithm"):
        model.learn(20)
    others.close()
    envs.close()


def test_observations_are_normalized_by_the_batches_that_were_learned_from(rng):
    space = gym.spaces.Box(-np.inf, np.inf, (2, 3))
    normalized = NormalizedObservations(space)
    batches = [torch.from_numpy(rng.normal([5, 0, 900], [1, 1e-2, 50], (64, 2, 3))).float() for _ in range(20)]
    for batch in batches:
        normalized(batch)
    normalized.eval()
    every = torch.cat(batches).flatten(1)
    expected = (every - every.mean(0)) / every.std(0)
    torch.testing.assert_close(normalized(torch.cat(batches)), expected.clamp(-10, 10), atol=0.1, rtol=0.1)
    torch.testing.assert_close(normalized(torch.full((1, 2, 3), 1e9)), torch.full((1, 6), 10.0))


def test_held_noise_lasts_then_changes_then_ends():
    noise = HeldActionNoise(2, sigma=3, hold=4, steps=10)
    drawn = np.stack([noise() for _ in range(12)])
    assert drawn.dtype == np.float32
    np.testing.assert_array_equal(drawn[:4], drawn[[0] * 4])
    np.testing.assert_array_equal(drawn[4:8], drawn[[4] * 4])
    assert len(np.unique(drawn[[0, 4, 8]])) == 6
    assert (np.abs(drawn) <= 3).all()
    np.testing.assert_array_equal(drawn[10:], 0)
    for parameter, wrong in {"size": 0, "sigma": -1, "hold": 0, "steps": -4}.items():
        with pytest.raises(ValueError, match=rf"`{parameter}` must be .*\. Received {wrong}"):
            HeldActionNoise(**{"size": 2, parameter: wrong})
