"""ReplayBuffer: every transition once, with its own reward, whatever the order in which rewards arrive."""

import io

import gymnasium as gym
import numpy as np
import pytest
import torch
from counting_env import Counting
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reward_models import PixelReward

import vlmrm_gym
from vlmrm_gym.replay import ReplayBuffer


@pytest.fixture
def pixel_rewards(monkeypatch):
    monkeypatch.setattr("vlmrm_gym.vector.CLIPReward", PixelReward)


def contents(buffer):
    """All that can be sampled, oldest first: (observation, action, next observation, reward, termination)."""
    rooms = (buffer._observations, buffer._actions, buffer._next_observations, buffer._rewards, buffer._terminations)
    rows = list(zip(*(room[: len(buffer)].reshape(len(buffer)).tolist() for room in rooms), strict=True))
    oldest = buffer._stored % buffer.capacity if buffer._stored > buffer.capacity else 0
    return rows[oldest:] + rows[:oldest]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=4),
    mode=st.sampled_from([*AutoresetMode]),
    scoring=st.sampled_from(["episode", "overlap", "step"]),
    capacity=st.integers(1, 40),
    flushes=st.lists(st.booleans(), min_size=1, max_size=40),
)
def test_against_a_slow_and_obvious_model(pixel_rewards, lengths, mode, scoring, capacity, flushes):
    """The model: a list of what happened in each environment; in `Counting`, frame, reward and observation agree."""
    bases = [Counting(own, first=10_000 * number) for number, own in enumerate(lengths)]
    options = {"scoring": "step"} if scoring == "step" else {"overlap": scoring == "overlap"}
    envs = vlmrm_gym.VLMRewardVectorEnv([lambda b=b: b for b in bases], "count", autoreset_mode=mode, **options)
    large, small = ReplayBuffer(10_000, envs), ReplayBuffer(capacity, envs)
    rng = np.random.default_rng(0)
    observations, _ = envs.reset(seed=0)
    happened = set()
    ended = np.zeros(len(bases), dtype=bool)
    for flush in flushes:
        if mode == AutoresetMode.DISABLED and ended.any():
            observations, infos = envs.reset(options={"reset_mask": ended})
            if scoring != "step":
                large.release(infos), small.release(infos)
        counts = [len(base.led_to) for base in bases]
        actions = rng.integers(2, size=len(bases))
        next_observations, rewards, terminations, truncations, infos = envs.step(actions)
        for buffer in (large, small):
            buffer.add(observations, actions, next_observations, rewards, terminations, truncations, infos)
        for i, base in enumerate(bases):
            if len(base.led_to) > counts[i]:
                led_to = base.led_to[-1]
                happened.add((observations[i].item(), actions[i], led_to, led_to, float(terminations[i])))
        observations, ended = next_observations, terminations | truncations
        if flush and scoring != "step":
            infos = envs.flush()
            large.release(infos), small.release(infos)
            assert large.held == 0
        assert set(contents(large)) <= happened
        assert len(large) + large.held == len(happened)
    if scoring != "step":
        infos = envs.flush()
        large.release(infos), small.release(infos)
    stored = contents(large)
    assert len(stored) == len(happened)
    assert set(stored) == happened
    assert contents(small) == stored[-capacity:]
    envs.close()


def test_samples_are_transitions_each_as_likely(pixel_rewards):
    envs = vlmrm_gym.VLMRewardVectorEnv([lambda: Counting([4])] * 2, "count", autoreset_mode="SameStep")
    buffer = ReplayBuffer(8, envs, seed=3)
    observations, _ = envs.reset(seed=0)
    actions = np.zeros(2, dtype=int)
    with pytest.raises(RuntimeError, match=r"nothing to sample: 0 transitions wait"):
        buffer.sample(1)
    for step in range(4):
        if step == 3:
            with pytest.raises(RuntimeError, match=r"nothing to sample: 6 transitions wait for their rewards"):
                buffer.sample(1)
        results = envs.step(actions)
        buffer.add(observations, actions, *results)
        observations = results[0]
    batch = buffer.sample(8_000)
    np.testing.assert_array_equal(batch.rewards, batch.next_observations[:, 0])
    np.testing.assert_array_equal(batch.next_observations, batch.observations + 1)
    _, counts = np.unique(batch.rewards, return_counts=True)
    np.testing.assert_allclose(counts, 2_000, rtol=0.1)  # of 4 rewards, each in both environments
    again = ReplayBuffer(8, envs, seed=4)
    again.load_state_dict(buffer.state_dict())
    assert contents(again) == contents(buffer)
    np.testing.assert_array_equal(again.sample(20).rewards, buffer.sample(20).rewards)
    envs.close()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("door", ["reset", "flush"])
@pytest.mark.parametrize("released", [False, True])
def test_rewards_that_were_not_released_are_nobody_elses(door, overlap, released, pixel_rewards):
    """Episodes cut off by a reset, or scored by a flush in the middle: others' rewards are not theirs."""
    bases = [lambda: Counting([7]), lambda: Counting([5], first=1_000)]
    envs = vlmrm_gym.VLMRewardVectorEnv(bases, "count", overlap=overlap)
    buffer, count = ReplayBuffer(100, envs), 0
    observations, _ = envs.reset(seed=0)
    for step in range(30):
        if step in (3, 10):
            observations, infos = (observations, envs.flush()) if door == "flush" else envs.reset()
            if released:
                buffer.release(infos)
        results = envs.step(np.zeros(2, dtype=int))
        buffer.add(observations, np.zeros(2, dtype=int), *results)
        count += int(results[4]["_task_reward"].sum())
        observations = results[0]
    buffer.release(envs.flush())
    np.testing.assert_array_equal(buffer._rewards[: len(buffer)], buffer._next_observations[: len(buffer), 0])
    assert buffer.held == 0
    if released:
        assert len(buffer) == count
    envs.close()


def test_what_is_saved_is_what_is_stored_and_not_the_room_for_more(pixel_rewards):
    envs = vlmrm_gym.VLMRewardVectorEnv([lambda: Counting([3])], "count")
    buffer = ReplayBuffer(100_000, envs)
    observations, _ = envs.reset(seed=0)
    for _ in range(3):
        results = envs.step(np.zeros(1, dtype=int))
        buffer.add(observations, np.zeros(1, dtype=int), *results)
        observations = results[0]
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    assert len(buffer) == 3
    assert file.tell() < 20_000  # bytes; 100,000 transitions have over two million
    envs.close()


def test_bad_input(pixel_rewards):
    envs = vlmrm_gym.VLMRewardVectorEnv([lambda: Counting([2])], "count")
    with pytest.raises(ValueError, match=r"`capacity` must be an integer of at least 1. Received 0"):
        ReplayBuffer(0, envs)
    with pytest.raises(ValueError, match=r"`envs` must be a vector environment.*Received <counting_env.Counting"):
        ReplayBuffer(5, Counting([2]))
    buffer = ReplayBuffer(5, envs)
    with pytest.raises(ValueError, match=r"`batch_size` must be an integer of at least 1. Received 0"):
        buffer.sample(0)
    plain = gym.vector.SyncVectorEnv([lambda: Counting([2])])
    observations, _ = plain.reset(seed=0)
    with pytest.raises(ValueError, match=r"`infos` must be what a VLMRewardVectorEnv returned"):
        buffer.add(observations, np.zeros(1, dtype=int), *plain.step(np.zeros(1, dtype=int)))
    for state, why in (
        (ReplayBuffer(6, envs).state_dict(), "whose capacity is 5. Received one with 6"),
        (
            {**buffer.state_dict(), "observations": torch.empty(0, 4)},
            r"whose observations is .*\(1,\)\). Received .*\(4,\)",
        ),
    ):
        with pytest.raises(ValueError, match=why):
            buffer.load_state_dict(state)
    envs.close()

    class Nested(Counting):
        def __init__(self):
            super().__init__()
            self.observation_space = gym.spaces.Dict(count=self.observation_space)

    nested = gym.vector.SyncVectorEnv([Nested])
    with pytest.raises(ValueError, match=r"`envs` must have a box or discrete observation space. Received Dict"):
        ReplayBuffer(5, nested)
