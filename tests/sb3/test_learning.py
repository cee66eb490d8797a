"""Unmodified Stable-Baselines3 algorithms learn from rewards that arrive at the end of episodes."""

import pickle
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from counting_env import Counting, CountingDict
from sb3_contrib import QRDQN, TQC, CrossQ
from sb3_helpers import Rollouts, StopAfter, off_policy, on_policy, parameters
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.vec_env import VecNormalize

from vlmrm_gym import CLIPReward
from vlmrm_gym.sb3 import DeferredReplayBuffer, RewardHandle, RunningNormExtractor, ScoredReturnCallback
from vlmrm_gym.states.classic_control import CartPoleRenderer


def score_again(next_observations):
    """Rescore observations of cart-pole, which contain the whole state."""
    score = CLIPReward("tiny", prompt="pole vertically upright on top of the cart")
    renderer = CartPoleRenderer(*score.render_size(400, 600))
    return score(renderer.render(next_observations[:, [0, 2]]))


@pytest.mark.parametrize(
    "algorithm",
    [QRDQN, SAC, CrossQ, *(pytest.param(one, marks=pytest.mark.slow) for one in (TD3, DDPG, TQC))],
    ids=lambda a: a.__name__,
)
def test_off_policy_algorithms_learn_from_the_rewards_of_their_transitions(algorithm, counting):
    """Stored rewards are those of the stored states."""
    make = partial(Counting, continuous=algorithm is not QRDQN)
    envs, _ = counting([[20], [20]], make, overlap=True)
    model = off_policy(algorithm, envs, learning_starts=90)
    before = parameters(model)
    model.learn(140, callback=ScoredReturnCallback())
    assert not np.array_equal(parameters(model), before)
    buffer, size = model.replay_buffer, model.replay_buffer.size()
    assert size >= 80
    assert size + buffer.num_pending == model.num_timesteps
    np.testing.assert_array_equal(buffer.rewards[:size, 0], buffer.next_observations[:size, 0, 0])
    assert buffer.dones[:size].sum() == size // 20
    np.testing.assert_array_equal(buffer.timeouts[:size], buffer.dones[:size])
    assert np.isfinite([episode["r"] for episode in model.ep_info_buffer]).all()
    assert len(model.ep_info_buffer) >= 4


class TimeLimits(Rollouts):
    """Keeps of each rollout also the rewards at time limits, and the observations and values that they led to."""

    def _on_rollout_start(self):
        self.ends, self.limits = [], []

    def _on_step(self):
        infos = enumerate(self.locals["infos"])
        cut = [(i, info["terminal_observation"]) for i, info in infos if info.get("TimeLimit.truncated")]
        self.ends += [(self.model.rollout_buffer.pos, i, observation) for i, observation in cut]
        return True

    def _on_rollout_end(self):
        super()._on_rollout_end()
        *rows, led_to = map(np.array, zip(*self.ends, strict=True))
        with torch.no_grad():
            values = self.model.policy.predict_values(torch.as_tensor(led_to)).numpy()[:, 0]
        self.limits.append((self.model.rollout_buffer.rewards[tuple(rows)], led_to, values))


@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept")  # Stable-Baselines3, at time limits
def test_on_policy_algorithms_get_their_rewards_before_advantages(make_envs):
    """Those of the bundled model; a value follows a time limit beside them (contract 5: it is no termination)."""
    envs, rollouts = make_envs("VLMRM/CartPole-v1", num_envs=2, seed=0, episode_length=25), TimeLimits()
    model = on_policy(PPO, envs, 40, gamma=0.5).learn(160, callback=rollouts)
    assert len(rollouts.seen) == 2
    for rewards, led_to in rollouts.seen:
        assert len(rewards) >= 74
        np.testing.assert_allclose(rewards, score_again(led_to), atol=1e-4)
    ((rewards, led_to, values),) = rollouts.limits  # of the last rollout: two ends of each environment
    assert len(rewards) == 4
    assert abs(values).min() > 0.001
    np.testing.assert_allclose(rewards, score_again(led_to) + 0.5 * values, atol=1e-4)
    assert np.isfinite(parameters(model)).all()


def test_interrupted_trainings_match_rewards_and_transitions(counting):
    """The step that finds the wrong buffer has been made. With the right one the user goes on with the environments.

    A callback ends `learn` before the last transition is stored, and `learn` resets in the middle of episodes.
    """
    envs, _ = counting([[7], [4, 5]])
    with pytest.raises(ValueError, match="Pass replay_buffer_class=DeferredReplayBuffer"):
        DQN("MlpPolicy", envs, device="cpu").learn(100)
    model = off_policy(DQN, envs)
    for _ in range(3):
        model.learn(1_000, callback=StopAfter(10), reset_num_timesteps=False)
    model.learn(200)
    buffer, size = model.replay_buffer, model.replay_buffer.size()
    assert size > 150
    np.testing.assert_array_equal(buffer.rewards[:size, 0], buffer.next_observations[:size, 0, 0])
    assert len(np.unique(buffer.rewards[:size])) == size


@pytest.mark.parametrize("how", ["loaded", "set"])
def test_pending_transitions_are_dropped_when_the_environments_change(how, counting, tmp_path):
    first, _ = counting([[11], [11]], overlap=True)
    others, bases = counting([[9], [13], [7]] if how == "loaded" else [[9], [13]], overlap=True)
    for base in bases:
        base.count += 100_000
    model = off_policy(DQN, first).learn(50)
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


def test_rollouts_have_every_reward_once_and_leave_no_placeholders(counting):
    envs, rollouts = counting([[7], [4, 5]])[0], Rollouts()
    for n_steps in (8, 13):  # one after the other, on the same environments
        on_policy(A2C, envs, n_steps).learn(4 * 2 * n_steps, callback=rollouts)
    assert len(rollouts.seen) == 8
    for rewards, led_to in rollouts.seen:
        assert len(rewards)
        np.testing.assert_array_equal(rewards, led_to[:, 0])
    assert np.isnan(envs.step(np.zeros(2, dtype=int))[1]).all()


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


def test_off_policy_algorithms_learn_from_dictionary_observations(counting, tmp_path):
    """Stored observations match the scored frames, including the last one of an episode; also after loading."""
    envs, bases = counting([[7], [4, 5]], CountingDict)
    make_model = partial(off_policy, DQN, envs, "MultiInputPolicy", buffer_size=500, learning_starts=30)
    model = make_model()
    before = parameters(model)
    model.learn(120)
    assert not np.array_equal(parameters(model), before)
    assert np.isfinite(parameters(model)).all()
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
    again = DQN.load(tmp_path / "model", env=envs)
    again.load_replay_buffer(tmp_path / "buffer")
    np.savez(tmp_path / "arrays.npz", **buffer.state_dict())
    other = make_model()
    with np.load(tmp_path / "arrays.npz", allow_pickle=False) as arrays:
        other.replay_buffer.load_state_dict(arrays)
    for loaded in (again, other):
        stored = loaded.replay_buffer
        assert (stored.size(), stored.num_pending) == (size, buffer.num_pending)
        check_dictionaries(stored.next_observations, rewards)
        loaded.learn(60)  # the reset aborts episodes; their pending transitions are scored then
        stored = loaded.replay_buffer
        assert stored.size() > size + 40
        check_dictionaries(stored.next_observations, stored.rewards[: stored.size(), 0])


def test_on_policy_algorithms_learn_from_dictionary_observations(counting, tmp_path):
    envs, rollouts = counting([[7], [9, 5]], CountingDict)[0], Rollouts()
    network = {"net_arch": [16], "features_extractor_class": RunningNormExtractor}
    model = on_policy(PPO, envs, 20, "MultiInputPolicy", policy_kwargs=network).learn(120, callback=rollouts)
    assert len(rollouts.seen) == 3
    for rewards, led_to in rollouts.seen:
        assert len(rewards) > 25
        check_dictionaries(led_to, rewards)
    assert np.isfinite(parameters(model)).all()
    model.save(tmp_path / "model")  # a file has no environments: it is loaded with another handle
    with pytest.raises(ValueError, match="`rewards` must be a RewardHandle with its environments"):
        PPO.load(tmp_path / "model", env=envs).learn(40)
    again = PPO.load(tmp_path / "model", env=envs, rollout_buffer_kwargs={"rewards": RewardHandle(envs)})
    again.learn(40, callback=rollouts)
    check_dictionaries(*reversed(rollouts.seen[-1]))


def test_dictionaries_are_stored_unnormalized(counting):
    envs, _ = counting([[7], [4, 5]], CountingDict)
    normalized = VecNormalize(envs, norm_reward=False, norm_obs_keys=["count"])
    buffer = off_policy(DQN, normalized, "MultiInputPolicy", learning_starts=30).learn(60).replay_buffer
    rewards = buffer.rewards[: buffer.size(), 0]
    assert len(rewards) > 40
    np.testing.assert_allclose(buffer.next_observations["count"][: len(rewards), 0, 0], rewards, atol=1e-2)
    sampled = buffer.sample(50, normalized)
    assert (sampled.next_observations["count"].abs() <= 10).all()
    assert sampled.next_observations["phase"].max() == 4


def test_the_order_of_a_dictionary_does_not_matter():
    space = CountingDict().observation_space
    buffer = DeferredReplayBuffer(5, space, gym.spaces.Discrete(2), device="cpu")
    seen = [{key: np.array([value]) for key, value in CountingDict.dictionary(np.array([c])).items()} for c in (6, 7)]
    info = {"vlm_env_uid": "", "vlm_step_index": 0, "vlm_rewards": np.array([7.0]), "vlm_reward_start": 0}
    shuffled = [dict(reversed(one.items())) for one in seen]
    buffer.add(*shuffled, np.zeros(1), np.full(1, np.nan), np.zeros(1), [info])
    check_dictionaries(buffer.observations, [6])
    check_dictionaries(buffer.next_observations, [7])


def test_a_full_buffer_that_was_loaded_replaces_its_oldest_transitions_and_one_that_is_reset_is_empty(counting):
    buffer = off_policy(DQN, counting([[5]])[0], buffer_size=20).learn(36).replay_buffer
    again = pickle.loads(pickle.dumps(buffer))
    info = {"vlm_env_uid": buffer._env_uid, "vlm_step_index": 1_000, "vlm_reward_start": 1_000}
    for one in (buffer, again):
        assert (one.pos, one.full) == (15, True)
        step = np.zeros((1, 1)), np.ones((1, 1)), np.zeros(1), np.zeros(1), np.zeros(1)
        one.add(*step, [{**info, "vlm_rewards": np.array([7.0])}])
        assert (one.pos, one.rewards[15, 0]) == (16, 7)
    np.testing.assert_array_equal(again.rewards, buffer.rewards)
    waiting = buffer.num_pending
    buffer.reset()
    assert (buffer.size(), buffer.num_pending) == (0, waiting)
    with pytest.raises(RuntimeError, match="There is nothing to sample"):
        buffer.sample(1)
