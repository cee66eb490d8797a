"""Unmodified Stable-Baselines3 algorithms learn from rewards that arrive at the end of episodes."""

import copy
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from counting_env import Counting, CountingDict
from sb3_contrib import ARS, QRDQN, TQC, TRPO, CrossQ, MaskablePPO, RecurrentPPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked_policy
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor, VecNormalize

import vlmrm_gym
from vlmrm_gym import CLIPReward
from vlmrm_gym.episodes import EpisodeStatistics
from vlmrm_gym.rendering.classic_control import CartPoleRenderer, MountainCarRenderer
from vlmrm_gym.replay import ReplayBuffer
from vlmrm_gym.sb3 import (
    ActionRepeatNoise,
    DeferredReplayBuffer,
    DeferredRolloutBuffer,
    RewardHandle,
    RunningNormExtractor,
    ScoredReturnCallback,
    VLMVecEnv,
    make_vec_env,
)
from vlmrm_gym.sb3.episodes import EpisodeTracker
from vlmrm_gym.tasks import TASKS

PROMPTS = {task.id: task.prompt for task in TASKS}
CARTPOLE, MOUNTAIN_CAR = "VLMRM/CartPole-v1", "VLMRM/MountainCarContinuous-v0"


def score_again(env_id, next_observations):
    """Rescore observations that contain the whole state."""
    score = CLIPReward(prompt=PROMPTS[env_id])
    if env_id == CARTPOLE:
        renderer, states = CartPoleRenderer(*score.render_size(400, 600)), next_observations[:, [0, 2]]
    else:
        renderer = MountainCarRenderer(*score.render_size(400, 600), textured=False)
        states = next_observations[:, :1]
    return score(renderer.render(states))


@pytest.mark.parametrize("algorithm", [DQN, QRDQN, SAC, TD3, DDPG, TQC, CrossQ], ids=lambda a: a.__name__)
def test_off_policy_algorithms_learn_from_the_rewards_of_their_transitions(algorithm):
    """Stored rewards equal the rescored rewards of the stored states."""
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
    model.learn(260, callback=ScoredReturnCallback())
    assert any(not torch.equal(value, before[name]) for name, value in model.policy.state_dict().items())
    buffer = model.replay_buffer
    assert buffer.size() >= 200
    assert buffer.size() + buffer.num_pending == model.num_timesteps
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
        rollout_buffer_kwargs={"rewards": RewardHandle(envs)},
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
            # The observation of a step is the next observation of the previous one, except at the start of an episode.
            own = score_again(CARTPOLE, observations[1:, number])
            agree = np.isclose(rewards[:-1, number], own, atol=1e-4)
            assert agree.sum() >= 37
    assert np.isfinite(model.policy.state_dict()["value_net.weight"]).all()
    envs.close()


def test_a_custom_loop_gets_nan_without_a_warning():
    envs = make_vec_env(CARTPOLE, num_envs=1, episode_length=5)
    envs.reset()
    for _ in range(12):
        assert np.isnan(envs.step(np.zeros(1, dtype=int))[1]).all()
    envs.close()


@pytest.mark.parametrize("algorithm", [DQN, QRDQN, SAC, TD3, DDPG, TQC, CrossQ], ids=lambda a: a.__name__)
def test_off_policy_algorithms_with_a_plain_buffer_are_refused(algorithm):
    """They would learn from NaN."""
    discrete = algorithm in (DQN, QRDQN)
    envs = make_vec_env(CARTPOLE if discrete else MOUNTAIN_CAR, num_envs=2, episode_length=10)
    model = algorithm("MlpPolicy", envs, learning_starts=40, device="cpu")
    remedy = (
        rf"`env` gives NaN rewards .* {algorithm.__name__} .*Pass replay_buffer_class=DeferredReplayBuffer, or make .*"
    )
    with pytest.raises(ValueError, match=remedy + 'scoring="step"'):
        model.learn(200)
    assert not model.replay_buffer.size()
    envs.close()


@pytest.mark.parametrize("algorithm", [PPO, A2C, TRPO], ids=lambda a: a.__name__)
def test_on_policy_algorithms_with_a_plain_buffer_are_refused(algorithm):
    envs = make_vec_env(CARTPOLE, num_envs=2, episode_length=10)
    remedy = (
        rf"`env` gives NaN rewards .* {algorithm.__name__} .*Pass rollout_buffer_class=DeferredRolloutBuffer, "
        r'rollout_buffer_kwargs=\{"rewards": RewardHandle\(envs\)\}, or make .* scoring="step"'
    )
    with pytest.raises(ValueError, match=remedy):
        algorithm("MlpPolicy", envs, device="cpu").learn(200)
    envs.close()


def test_plain_buffers_are_refused_under_wrappers_and_without_a_counterpart():
    envs = make_vec_env(CARTPOLE, num_envs=2, episode_length=10)
    wrapped = VecNormalize(VecFrameStack(envs, 2), norm_reward=False)
    with pytest.raises(ValueError, match=r"Received a ReplayBuffer\. Pass replay_buffer_class=DeferredReplayBuffer"):
        DQN("MlpPolicy", wrapped, device="cpu").learn(20)
    with pytest.raises(ValueError, match=r'Received a NStepReplayBuffer\. Make the environments with scoring="step"\.'):
        DQN("MlpPolicy", envs, n_steps=3, device="cpu").learn(20)
    with pytest.raises(ValueError, match=r"Received a RecurrentRolloutBuffer\. Make the environments"):
        RecurrentPPO("MlpLstmPolicy", envs, device="cpu").learn(20)
    with pytest.raises(ValueError, match=r"Received a MaskableRolloutBuffer\. Make the environments"):
        MaskablePPO("MlpPolicy", envs, device="cpu").learn(20, use_masking=False)
    envs.close()


def test_plain_buffers_are_refused_after_another_algorithm_has_trained_on_the_environments():
    """A rollout buffer leaves placeholders instead of NaN for the rest of its rollout."""

    class Stop(BaseCallback):
        def _on_step(self):
            return False

    envs, _ = counting([[7], [7]])
    rollouts = {"rollout_buffer_class": DeferredRolloutBuffer, "rollout_buffer_kwargs": {"rewards": RewardHandle(envs)}}
    A2C("MlpPolicy", envs, n_steps=50, device="cpu", **rollouts).learn(100, callback=Stop())
    with pytest.raises(ValueError, match="Pass replay_buffer_class=DeferredReplayBuffer"):
        DQN("MlpPolicy", envs, device="cpu").learn(20)
    envs.close()


@pytest.mark.parametrize("scoring", ["episode", "step"])
@pytest.mark.filterwarnings("ignore:`n_steps=3` is ignored")  # Stable-Baselines3, for every custom replay buffer
def test_deferred_replay_buffer_refuses_n_step_returns(scoring):
    envs, _ = counting([[7], [7]], scoring=scoring)
    options = {"replay_buffer_class": DeferredReplayBuffer, "device": "cpu"}
    with pytest.raises(ValueError, match=r"`n_steps` must be 1 with DeferredReplayBuffer.*Received 3\. Leave it out"):
        DQN("MlpPolicy", envs, n_steps=3, **options).learn(20)
    with pytest.raises(ValueError, match=r"`n_steps` must be 1 with DeferredReplayBuffer.*Received 3\. Leave it out"):
        DQN("MlpPolicy", envs, replay_buffer_kwargs={"n_steps": 3, "gamma": 0.9}, **options)
    envs.close()


def test_plain_buffers_and_n_step_returns_work_with_step_scoring():
    envs, bases = counting([[7], [7]], scoring="step")
    model = DQN("MlpPolicy", envs, n_steps=3, train_freq=1, learning_starts=80, device="cpu").learn(100)
    np.testing.assert_array_equal(model.replay_buffer.rewards[:50].T, [base.expected_rewards for base in bases])
    envs.close()


def observing(space):
    env = Counting()
    env.observation_space = space
    return env


def counting(lengths, make=Counting, **options):
    bases = [make(own, first=1_000 * number) for number, own in enumerate(lengths)]
    options = {"reward": "reward_models:PixelReward", "autoreset_mode": "SameStep", **options}
    envs = vlmrm_gym.VLMRewardVectorEnv([lambda b=b: b for b in bases], **options)
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


@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_that_raised_does_not_shift_rewards(overlap):
    """The step that finds the wrong buffer has been made. With the right one the user goes on with the environments."""
    envs = make_vec_env(CARTPOLE, num_envs=2, seed=0, episode_length=10, overlap=overlap)
    with pytest.raises(ValueError, match="Pass replay_buffer_class=DeferredReplayBuffer"):
        DQN("MlpPolicy", envs, device="cpu").learn(100)
    options = {"learning_starts": 1_000, "buffer_size": 1_000, "device": "cpu"}
    model = DQN("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, **options).learn(120)
    buffer = model.replay_buffer
    stored = buffer.size()
    assert stored >= 100
    expected = score_again(CARTPOLE, buffer.next_observations[:stored, 0])
    np.testing.assert_allclose(buffer.rewards[:stored, 0], expected, atol=1e-3)
    envs.close()


def test_rewards_find_their_transitions_by_index():
    """After a transition that no step added, rewards that are lost, and rewards that have come before."""
    tracker = EpisodeTracker()
    for index in (0, 1, 3, 4):  # the call that made transition 2 raised
        tracker.skip_to(index)
        tracker.step(0.0, None)
    tracker.end_episode()
    tracker.step(0.0, None)
    tracker.end_episode()
    tracker.add_rewards(0, {"vlm_rewards": np.array([0.0, 1.0], dtype=np.float32)})
    tracker.add_rewards(1, {"vlm_rewards": np.array([1.0, 2.0, 3.0], dtype=np.float32)})
    info = tracker.pop_updates(0.0)
    assert (info["vlm_reward_start"], info["vlm_rewards"].tolist()) == (0, [0.0, 1.0, 2.0, 3.0])
    tracker.add_rewards(5, {"vlm_rewards": np.array([5.0], dtype=np.float32)})  # those of transition 4 are lost
    info = tracker.pop_updates(0.0)
    assert (info["vlm_reward_start"], info["vlm_rewards"].tolist()) == (5, [5.0])
    assert (info["episode"]["r"], info["episode"]["l"]) == (5.0, 1)  # the first episode is not reported
    assert tracker.fully_scored


def test_interrupted_trainings_match_rewards_and_transitions():
    """A callback ends `learn` before the last transition is stored, and `learn` resets in the middle of episodes."""
    envs, _ = counting([[7], [4, 5]])
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
def test_pending_transitions_are_dropped_when_the_environments_change(how, overlap, tmp_path):
    first, _ = counting([[11], [11]], overlap=overlap)
    others, bases = counting([[9], [13], [7]] if how == "loaded" else [[9], [13]], overlap=overlap)
    for base in bases:
        base.count += 100_000
    model = dqn(first)
    model.learn(50)
    assert model.replay_buffer.num_pending
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
    assert buffer.size() - before + buffer.num_pending == model.num_timesteps
    first.close()
    others.close()


@pytest.mark.parametrize("scoring", ["episode", "step"])
def test_rollouts_have_every_reward_once_and_leave_no_placeholders(scoring):
    envs, _ = counting([[7], [4, 5]], scoring=scoring)
    seen = []

    class Look(BaseCallback):
        def _on_step(self):
            return True

        def _on_rollout_end(self):
            buffer = self.model.rollout_buffer
            goes_on = buffer.episode_starts[1:] == 0  # rows after a reset do not say what the step before led to
            seen.append((buffer.rewards[:-1][goes_on], buffer.observations[1:, :, 0][goes_on]))

    for n_steps in (8, 13):  # one after the other, on the same environments
        options = {"rewards": RewardHandle(envs)}
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


def test_aborted_episodes_are_not_reported():
    envs, _ = counting([[7]])
    envs.reset()
    lengths = []
    for step in range(24):
        if step == 3:
            envs.reset()
        (info,) = envs.step(np.zeros(1, dtype=int))[3]
        lengths += [info["episode"]["l"]] if "episode" in info else []
    assert lengths == [7, 7, 7]
    envs.close()


def test_evaluate_policy_reports_vlm_returns():
    envs = make_vec_env("vlmrm_gym:" + CARTPOLE, num_envs=2, seed=0, episode_length=10)
    assert envs.success_threshold == 1.0
    model = dqn(envs)
    returns, lengths = evaluate_policy(model, envs, n_eval_episodes=4, return_episode_rewards=True)
    assert lengths == [10] * 4
    assert all(0 < value <= 10 for value in returns)
    envs.close()


def returns_of(base, first_episode):
    """The returns of an environment's finished episodes, from one on."""
    totals = {}
    for episode, reward in zip(base.episodes, base.expected_rewards, strict=True):
        totals.setdefault(episode, []).append(reward)
    return [sum(own) for episode, own in totals.items() if episode >= first_episode and len(own) == base.lengths[0]]


@pytest.mark.parametrize("evaluate", [evaluate_policy, partial(evaluate_masked_policy, use_masking=False)])
def test_evaluations_wait_for_rewards_that_overlap(evaluate):
    """Also where a training's episode has not been reported yet when the evaluation begins."""
    envs, bases = counting([[1], [1]], reward="reward_models:SlowReward", overlap=True)
    envs.reset()
    envs.step(np.zeros(2, dtype=int))
    model = MaskablePPO("MlpPolicy", envs, device="cpu")
    played = bases[0].episode + 1
    returns, lengths = evaluate(model, envs, n_eval_episodes=6, return_episode_rewards=True)
    assert lengths == [1] * 6
    assert sorted(returns) == sorted(value for base in bases for value in returns_of(base, played))
    envs.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_ars_learns_from_vlm_returns(overlap):
    """It has no buffer: it plays episodes by evaluate_policy, and learns from their returns."""
    envs, bases = counting([[5], [5]], overlap=overlap)
    model = ARS("LinearPolicy", envs, n_delta=2, n_eval_episodes=2, device="cpu").learn(30)
    assert sorted(episode["r"] for episode in model.ep_info_buffer) == sorted(
        value for base in bases for value in returns_of(base, 0)
    )
    assert torch.isfinite(model.weights).all()
    envs.close()


def test_training_stops_at_the_return_of_overlapping_evaluations(tmp_path):
    """The best model is written, and StopTrainingOnRewardThreshold sees its return."""
    envs, _ = counting([[5], [5]])
    others, bases = counting([[5], [5]], overlap=True)
    stop = StopTrainingOnRewardThreshold(1.0)
    evaluation = EvalCallback(
        others, eval_freq=10, n_eval_episodes=2, verbose=0, best_model_save_path=tmp_path, callback_on_new_best=stop
    )
    assert dqn(envs).learn(60, callback=evaluation).num_timesteps == 20
    assert evaluation.best_mean_reward == np.mean([value for base in bases for value in returns_of(base, 0)])
    assert (tmp_path / "best_model.zip").exists()
    for one in (envs, others):
        one.close()


@pytest.mark.filterwarnings("ignore:The environment is already wrapped with a `Monitor`")  # Stable-Baselines3
@pytest.mark.parametrize("wrapper", [VecMonitor, lambda envs: VecNormalize(VecMonitor(envs))], ids=["", "normalized"])
def test_evaluations_under_a_vec_monitor_are_refused(wrapper):
    """Its returns would be NaN: ARS would learn from them, and EvalCallback would keep no model."""
    envs, _ = counting([[5], [5]])
    seen, message = wrapper(envs), r"`env` must not have a VecMonitor around it .*Leave it out: .*scoring=\"step\""
    with pytest.raises(ValueError, match=message):
        evaluate_policy(dqn(envs), seen)
    with pytest.raises(ValueError, match=message):
        ARS("LinearPolicy", seen, n_delta=2, device="cpu").learn(30)
    envs.close()


def test_scored_return_callback_refuses_an_algorithm_without_infos():
    envs, _ = counting([[5], [5]])
    with pytest.raises(RuntimeError, match=r"`callback` must not be a ScoredReturnCallback .*Received one with ARS"):
        ARS("LinearPolicy", envs, n_delta=2, device="cpu").learn(30, callback=ScoredReturnCallback())
    envs.close()


def test_other_evaluations_that_ask_for_a_monitor_are_warned_once():
    """They would take the return of an earlier episode, or none."""
    envs, _ = counting([[5], [5]], overlap=True)
    with pytest.warns(UserWarning, match=r"Rewards arrive after the step: .*Evaluate with evaluate_policy, or"):
        assert envs.env_is_wrapped(Monitor) == [False, False]
    assert envs.env_is_wrapped(Monitor) == [False, False]  # warnings are errors here
    envs.close()


@pytest.mark.filterwarnings("ignore:The environment is already wrapped with a `Monitor`")  # Stable-Baselines3
def test_evaluations_with_returns_do_not_warn():
    """In a training, on its own environments, and under a VecMonitor where rewards come at every step."""
    envs, _ = counting([[5], [5]])
    others, _ = counting([[5], [5]])
    returns = []

    class Look(EvalCallback):
        def _on_step(self):
            returns.append(self.last_mean_reward)
            return super()._on_step()

    callbacks = [Look(one, eval_freq=10, n_eval_episodes=2, verbose=0) for one in (envs, others)]
    dqn(envs).learn(60, callback=callbacks)
    assert np.isfinite(returns[-2:]).all()
    by_step, _ = counting([[5], [5]], scoring="step")
    assert np.isfinite(evaluate_policy(dqn(by_step), VecMonitor(by_step), n_eval_episodes=4)[0])
    for one in (envs, others, by_step):
        one.close()


def check_dictionaries(observations, counts):
    """Check that stored observations match the counts."""
    expected = [CountingDict.dictionary(np.array([count])) for count in counts]
    for key in ("count", "phase", "bits"):
        stored = observations[key][: len(expected)]
        np.testing.assert_allclose(stored.reshape(len(expected), -1), np.stack([np.ravel(e[key]) for e in expected]))


def ends_of(base):
    """Last observation of each episode, and whether it was truncated."""
    ends, step = {}, 0
    for length in base.lengths * len(base.expected_rewards):
        step += length
        if step <= len(base.expected_rewards):
            ends[base.expected_rewards[step - 1]] = length % 2 == 0
    return ends


@pytest.mark.parametrize("algorithm", [SAC, DQN, TQC], ids=lambda a: a.__name__)
@pytest.mark.parametrize("scoring", ["episode", "step"])
def test_off_policy_algorithms_learn_from_dictionary_observations(algorithm, scoring, tmp_path):
    """Stored observations match the scored frames, including the last one of an episode."""
    make = partial(CountingDict, continuous=algorithm is not DQN)
    envs, bases = counting([[7], [4, 5]], make, scoring=scoring)
    options = {
        "replay_buffer_class": DeferredReplayBuffer,
        "buffer_size": 500,
        "learning_starts": 30,
        "batch_size": 16,
        "train_freq": 4,
        "policy_kwargs": {"net_arch": [16]},
        "device": "cpu",
    }
    model = algorithm("MultiInputPolicy", envs, **options)
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    model.learn(120)
    after = model.policy.state_dict()
    assert any(not torch.equal(value, before[name]) for name, value in after.items())
    assert all(value.isfinite().all() for value in after.values())
    buffer, size = model.replay_buffer, model.replay_buffer.size()
    rewards = buffer.rewards[:size, 0]
    assert size + buffer.num_pending == 120
    assert set(rewards) <= {count for base in bases for count in base.expected_rewards}
    assert len(set(rewards)) == size > 90
    check_dictionaries(buffer.next_observations, rewards)
    check_dictionaries(buffer.observations, rewards - 1)
    ends = {count: over for base in bases for count, over in ends_of(base).items() if count in rewards}
    done = buffer.dones[:size, 0] == 1
    assert dict(zip(rewards[done], buffer.timeouts[:size, 0][done], strict=True)) == ends
    assert set(ends.values()) == {False, True}

    batch = buffer.sample(64)
    check_dictionaries({key: value.numpy() for key, value in batch.next_observations.items()}, batch.rewards[:, 0])

    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    again = algorithm.load(tmp_path / "model", env=envs)
    again.load_replay_buffer(tmp_path / "buffer")
    np.savez(tmp_path / "arrays.npz", **buffer.state_dict())
    other = algorithm("MultiInputPolicy", envs, **options)
    with np.load(tmp_path / "arrays.npz", allow_pickle=False) as arrays:
        other.replay_buffer.load_state_dict(arrays)
    for loaded in (again.replay_buffer, other.replay_buffer):
        assert (loaded.size(), loaded.num_pending) == (size, buffer.num_pending)
        check_dictionaries(loaded.next_observations, rewards)
    for loaded in (again, other):
        loaded.learn(60)  # the reset aborts episodes; their pending transitions are scored then
        stored = loaded.replay_buffer
        assert stored.size() > size + 40
        check_dictionaries(stored.next_observations, stored.rewards[: stored.size(), 0])
    envs.close()


@pytest.mark.parametrize("algorithm", [PPO, A2C], ids=lambda a: a.__name__)
def test_on_policy_algorithms_learn_from_dictionary_observations(algorithm, tmp_path):
    envs, _ = counting([[7], [9, 5]], CountingDict)
    seen = []

    class Look(BaseCallback):
        def _on_step(self):
            return True

        def _on_rollout_end(self):
            buffer = self.model.rollout_buffer
            goes_on = buffer.episode_starts[1:] == 0  # rows after a reset do not say what the step before led to
            own = {key: values[1:][goes_on].copy() for key, values in buffer.observations.items()}
            seen.append((buffer.rewards[:-1][goes_on], own))

    model = algorithm(
        "MultiInputPolicy",
        envs,
        n_steps=20,
        rollout_buffer_class=DeferredRolloutBuffer,
        rollout_buffer_kwargs={"rewards": RewardHandle(envs)},
        policy_kwargs={"net_arch": [16], "features_extractor_class": RunningNormExtractor},
        device="cpu",
        **({"batch_size": 20} if algorithm is PPO else {}),
    )
    model.learn(120, callback=Look())
    assert len(seen) == 3
    for rewards, observations in seen:
        assert len(rewards) > 25
        check_dictionaries(observations, rewards)
    assert all(value.isfinite().all() for value in model.policy.state_dict().values())
    model.save(tmp_path / "model")
    again = algorithm.load(tmp_path / "model", env=envs, rollout_buffer_kwargs={"rewards": RewardHandle(envs)})
    again.learn(40, callback=Look())
    check_dictionaries(*reversed(seen[-1]))
    envs.close()


def test_dictionaries_are_stored_unnormalized():
    envs, _ = counting([[7], [4, 5]], CountingDict)
    normalized = VecNormalize(envs, norm_reward=False, norm_obs_keys=["count"])
    model = DQN(
        "MultiInputPolicy", normalized, replay_buffer_class=DeferredReplayBuffer, learning_starts=30, device="cpu"
    ).learn(60)
    buffer, rewards = model.replay_buffer, model.replay_buffer.rewards[: model.replay_buffer.size(), 0]
    assert len(rewards) > 40
    np.testing.assert_allclose(buffer.next_observations["count"][: len(rewards), 0, 0], rewards, atol=1e-2)
    sampled = buffer.sample(50, normalized)
    assert (sampled.next_observations["count"].abs() <= 10).all()
    assert sampled.next_observations["phase"].max() == 4
    envs.close()


def test_the_order_of_a_dictionary_does_not_matter():
    space = CountingDict().observation_space
    buffer = DeferredReplayBuffer(5, space, gym.spaces.Discrete(2), device="cpu")
    seen = [{key: np.array([value]) for key, value in CountingDict.dictionary(np.array([c])).items()} for c in (6, 7)]
    info = {"vlm_env_uid": "", "vlm_step_index": 0, "vlm_rewards": np.array([7.0]), "vlm_reward_start": 0}
    shuffled = [dict(reversed(one.items())) for one in seen]
    buffer.add(*shuffled, np.zeros(1), np.full(1, np.nan), np.zeros(1), [info])
    check_dictionaries(buffer.observations, [6])
    check_dictionaries(buffer.next_observations, [7])


def test_plain_dict_buffers_are_refused():
    envs, _ = counting([[7]], CountingDict)
    with pytest.raises(
        ValueError, match=r"Received a DictReplayBuffer\. Pass replay_buffer_class=DeferredReplayBuffer"
    ):
        DQN("MultiInputPolicy", envs, device="cpu").learn(20)
    with pytest.raises(ValueError, match=r"Received a DictRolloutBuffer\. Pass rollout_buffer_class=DeferredRollout"):
        A2C("MultiInputPolicy", envs, device="cpu").learn(20)
    envs.close()


def test_vec_monitor_does_not_hide_scored_episodes(tmp_path):
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        envs = VecMonitor(make_vec_env(CARTPOLE, num_envs=1, seed=0, episode_length=10))
    model = dqn(envs)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    with pytest.warns(UserWarning, match="Rewards arrive after the step: VecMonitor"):
        model.learn(40, callback=ScoredReturnCallback(), log_interval=2)
    model.logger.close()
    assert "rollout/task_return" in (tmp_path / "progress.csv").read_text()
    envs.close()


def test_episodes_are_reported_once_their_rewards_have_arrived():
    envs, bases = counting([[3], [2, 5]], overlap=True)
    envs.reset()
    summaries = [[], []]
    for _ in range(40):
        for own, info in zip(summaries, envs.step(np.zeros(2, dtype=int))[3], strict=True):
            own.extend([info["episode"]] if "episode" in info else [])
    for base, own in zip(bases, summaries, strict=True):
        expected, begun = [], 0
        for length in base.lengths * 20:
            expected.append((float(sum(base.expected_rewards[begun : begun + length])), length, 0.5 * length))
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
        rollout_buffer_kwargs={"rewards": RewardHandle(envs)},
    )
    on_policy.save(tmp_path / "ppo")
    assert PPO.load(tmp_path / "ppo").predict(np.zeros(4, dtype=np.float32))[0] in (0, 1)
    with pytest.raises(ValueError, match="`rewards` must be a RewardHandle with its environments"):
        PPO.load(tmp_path / "ppo", env=envs).learn(40)
    PPO.load(tmp_path / "ppo", env=envs, rollout_buffer_kwargs={"rewards": RewardHandle(envs)}).learn(40)
    envs.close()


def test_what_is_logged(tmp_path):
    envs = make_vec_env(CARTPOLE, num_envs=2, seed=0, episode_length=10)
    model = DQN("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, learning_starts=10_000, device="cpu")
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(120, callback=ScoredReturnCallback(), log_interval=4)
    model.logger.close()
    header, *_ = (tmp_path / "progress.csv").read_text().splitlines()
    for name in ("ep_rew_mean", "vlm_return", "task_return", "success_fraction", "success_rate"):
        assert f"rollout/{name}" in header.split(",")
    assert envs.render().shape[2] == 3
    envs.close()


def test_normalized_rewards_are_refused():
    envs = VecNormalize(make_vec_env(CARTPOLE, num_envs=1, episode_length=10))
    with pytest.raises(ValueError, match="`norm_reward` of VecNormalize must be False"):
        DQN("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, learning_starts=20, device="cpu").learn(40)
    with pytest.raises(ValueError, match="`norm_reward` of VecNormalize must be False"):
        RewardHandle(envs)
    envs.norm_reward = False
    assert RewardHandle(envs).envs is envs.venv
    DQN("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, learning_starts=20, device="cpu").learn(40)
    envs.close()


def test_bad_input():
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
    with pytest.raises(TypeError, match=r"`prompt` must be a text or a list of texts. Received None"):
        make_vec_env("CartPole-v1")
    with pytest.raises(ValueError, match=r"`seed` must be an integer of at least 0. Received 'a'"):
        make_vec_env(CARTPOLE, seed="a")
    with pytest.raises(ValueError, match="`envs` must be a vector environment"):
        VLMVecEnv(Counting())
    plain = VLMVecEnv(gym.vector.SyncVectorEnv([Counting], autoreset_mode="SameStep"))
    plain.reset()
    with pytest.raises(RuntimeError, match="`envs` must be a VLMRewardVectorEnv"):
        plain.step(np.zeros(1, dtype=int))
    with pytest.raises(ValueError, match=r"`max_episode_steps` cannot be passed.*Pass episode_length=3"):
        make_vec_env(CARTPOLE, max_episode_steps=3)
    with pytest.raises(TypeError, match="VLMRewardVectorEnv cannot be copied or pickled"):
        copy.deepcopy(envs)
    nested = gym.spaces.Dict(a=gym.spaces.Dict(b=envs.observation_space))
    for space in (nested, gym.spaces.Tuple([envs.observation_space])):
        rule = r"space` must be a box or discrete space, or a Dict of such. Received .*FlattenObservation"
        with pytest.raises(ValueError, match="`observation_" + rule):
            DeferredReplayBuffer(10, space, envs.action_space)
        with pytest.raises(ValueError, match="`observation_" + rule):
            DeferredRolloutBuffer(10, space, envs.action_space, rewards=RewardHandle(envs))
        with pytest.raises(ValueError, match="`envs.single_observation_" + rule):
            VLMVecEnv(gym.vector.SyncVectorEnv([lambda s=space: observing(s)], autoreset_mode="SameStep"))
    with pytest.raises(ValueError, match="`envs` must be a VLMVecEnv"):
        RewardHandle(envs.envs)
    rollouts = {"rollout_buffer_class": DeferredRolloutBuffer, "device": "cpu"}
    with pytest.raises(ValueError, match=r"`rewards` must be a RewardHandle.* Received None"):
        A2C("MlpPolicy", envs, **rollouts)
    model = A2C("MlpPolicy", envs, rollout_buffer_kwargs={"rewards": RewardHandle(envs)}, **rollouts)
    others = make_vec_env(CARTPOLE, num_envs=1, episode_length=50)
    model.set_env(others)
    with pytest.raises(ValueError, match="`rewards` must be a RewardHandle of the environments that the algorithm"):
        model.learn(20)
    others.close()
    envs.close()


def test_observations_are_normalized_by_training_batches(rng):
    space = gym.spaces.Box(-np.inf, np.inf, (2, 3))
    normalized = RunningNormExtractor(space)
    batches = [torch.from_numpy(rng.normal([5, 0, 900], [1, 1e-2, 50], (64, 2, 3))).float() for _ in range(20)]
    for batch in batches:
        normalized(batch)
    normalized.eval()
    every = torch.cat(batches).flatten(1)
    expected = (every - every.mean(0)) / every.std(0)
    torch.testing.assert_close(normalized(torch.cat(batches)), expected.clamp(-10, 10), atol=0.1, rtol=0.1)
    torch.testing.assert_close(normalized(torch.full((1, 2, 3), 1e9)), torch.full((1, 6), 10.0))


def test_dictionaries_are_normalized_in_the_order_of_their_space(rng):
    space = gym.spaces.Dict(a=gym.spaces.Box(-np.inf, np.inf, (2, 2)), b=gym.spaces.Discrete(3))
    a, b = (torch.from_numpy(rng.normal(size=shape)).float() for shape in ((8, 2, 2), (8, 3)))
    normalized = RunningNormExtractor(space)
    one_array = RunningNormExtractor(gym.spaces.Box(-np.inf, np.inf, (7,)))
    torch.testing.assert_close(normalized({"b": b, "a": a}), one_array(torch.cat([a.flatten(1), b], 1)))


def test_action_repeat_noise_repeats_changes_and_ends():
    noise = ActionRepeatNoise(2, sigma=3, hold=4, steps=10)
    drawn = np.stack([noise() for _ in range(12)])
    assert drawn.dtype == np.float32
    np.testing.assert_array_equal(drawn[:4], drawn[[0] * 4])
    np.testing.assert_array_equal(drawn[4:8], drawn[[4] * 4])
    assert len(np.unique(drawn[[0, 4, 8]])) == 6
    assert (np.abs(drawn) <= 3).all()
    np.testing.assert_array_equal(drawn[10:], 0)
    for parameter, wrong in {"size": 0, "sigma": -1, "hold": 0, "steps": -4}.items():
        with pytest.raises(ValueError, match=rf"`{parameter}` must be .*\. Received {wrong}"):
            ActionRepeatNoise(**{"size": 2, parameter: wrong})


# ---------------------------------------------------------------------------------------------------------------------
# Things around the environments that would change rewards, or learn from others
# ---------------------------------------------------------------------------------------------------------------------


def halved(envs):
    return gym.wrappers.vector.TransformReward(envs, lambda rewards: rewards / 2)


@pytest.mark.parametrize("wrap", [halved, gym.wrappers.vector.NormalizeReward])
def test_wrappers_that_change_deferred_rewards_are_refused(wrap):
    rule = r"`envs` must have no wrapper that changes rewards: they arrive later"
    envs = gym.make_vec(CARTPOLE, 2, autoreset_mode="SameStep")
    for door in (VLMVecEnv, partial(ReplayBuffer, 100)):
        with pytest.raises(ValueError, match=rule):
            door(wrap(envs))
    envs.close()
    by_step = gym.make_vec(CARTPOLE, 2, autoreset_mode="SameStep", scoring="step")
    VLMVecEnv(wrap(by_step)).close()


class Goals(CountingDict):
    """`Counting` with goals, as hindsight needs them, and another reward for them."""

    def __init__(self):
        super().__init__([5])
        box = gym.spaces.Box(0, 2**24, (1,), np.float32)
        self.observation_space = gym.spaces.Dict(observation=box, achieved_goal=box, desired_goal=box)

    @staticmethod
    def dictionary(observation):
        return dict.fromkeys(("observation", "achieved_goal", "desired_goal"), observation.astype(np.float32))

    def compute_reward(self, achieved, desired, info):
        return -np.ones(len(achieved))


def hindsight(env):
    return DQN("MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer, learning_starts=12, device="cpu")


def test_hindsight_does_not_learn_from_another_reward():
    env = vlmrm_gym.VLMReward(Goals(), reward=lambda frames: frames.mean((1, 2, 3)))
    with pytest.raises(NotImplementedError, match="cannot be computed from goals"):
        hindsight(env).learn(40)
    env.close()


@pytest.mark.parametrize("scoring", ["episode", "step"])
def test_hindsight_buffers_are_refused(scoring):
    envs = VLMVecEnv(
        vlmrm_gym.VLMRewardVectorEnv(
            [Goals], reward="reward_models:PixelReward", autoreset_mode="SameStep", scoring=scoring
        )
    )
    with pytest.raises(ValueError, match="`replay_buffer_class` must not be HerReplayBuffer"):
        hindsight(envs).learn(40)
    envs.close()


def ppo(envs, handle=None, n_steps=10):
    return PPO(
        "MlpPolicy",
        envs,
        n_steps=n_steps,
        batch_size=n_steps,
        rollout_buffer_class=DeferredRolloutBuffer,
        rollout_buffer_kwargs={"rewards": RewardHandle(envs) if handle is None else handle},
        device="cpu",
    )


@pytest.mark.parametrize(("eval_freq", "error"), [(10, RuntimeError), (5, ValueError)])
def test_evaluations_on_the_environments_of_a_rollout_are_refused(eval_freq, error):
    """At its end, where rewards would be matched with other transitions, and within it."""
    envs, _ = counting([[7], [7]])
    with pytest.raises(error, match="EvalCallback"):
        ppo(envs).learn(40, callback=EvalCallback(envs, eval_freq=eval_freq, n_eval_episodes=2, verbose=0))
    envs.close()


def test_a_handle_of_the_inner_environments_does_not_hide_normalized_rewards():
    envs, _ = counting([[7], [7]])
    with pytest.raises(ValueError, match="`norm_reward` of VecNormalize must be False"):
        ppo(VecNormalize(envs), RewardHandle(envs)).learn(40)
    envs.close()


def test_rewards_are_nan_again_after_a_reset_in_a_rollout():
    envs, _ = counting([[7], [7]])
    ppo(envs)  # begins a rollout
    envs.reset()
    assert np.isnan(envs.step(np.zeros(2, dtype=int))[1]).all()
    envs.close()


@pytest.mark.parametrize("wrapper", [gym.wrappers.vector.RecordEpisodeStatistics, EpisodeStatistics])
def test_statistics_below_do_not_replace_vlm_returns(wrapper):
    scored = gym.make_vec(CARTPOLE, 2, episode_length=5, autoreset_mode="SameStep", scoring="step")
    envs = VLMVecEnv(wrapper(scored))
    envs.reset()
    returns = np.zeros(2)
    for _ in range(5):
        _, rewards, dones, infos = envs.step(np.zeros(2, dtype=int))
        returns += rewards
    assert dones.all()
    np.testing.assert_allclose([info["episode"]["r"] for info in infos], returns, rtol=1e-5)
    envs.close()


def test_returns_of_the_environments_own_reward_are_not_reported():
    make = lambda: gym.wrappers.RecordEpisodeStatistics(Counting([5]))  # noqa: E731
    scored = vlmrm_gym.VLMRewardVectorEnv(
        [make], reward="reward_models:PixelReward", autoreset_mode="SameStep", overlap=True
    )
    envs = VLMVecEnv(scored)
    envs.reset()
    reported = [envs.step(np.zeros(1, dtype=int))[3][0].get("episode") for _ in range(40)]
    returns = [episode["r"] for episode in reported if episode]
    assert returns
    assert 2.5 not in returns  # 5 steps of 0.5
    envs.close()


def test_options_must_be_the_same_for_all_environments():
    envs, _ = counting([[7], [7]])
    envs.set_options([{"goal": 1}, {"goal": 2}])
    with pytest.raises(ValueError, match="`options` must be the same for all environments"):
        envs.reset()
    envs.close()
