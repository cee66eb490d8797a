"""ReplayBuffer: every transition once, with its own reward, whatever the order in which rewards arrive."""

import io

import gymnasium as gym
import numpy as np
import pytest
import torch
from counting_env import Counting, CountingDict
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vlmrm_gym
from vlmrm_gym.data.replay import ReplayBuffer


def contents(buffer):
    """All that can be sampled, oldest first: (observation, action, next observation, reward, termination)."""
    names = ("observations", "actions", "next_observations", "rewards", "terminations")
    fields = (buffer._columns[name][: len(buffer)] for name in names)
    rows = list(zip(*(field.reshape(len(buffer)).tolist() for field in fields), strict=True))
    oldest = buffer._late.num_stored % buffer.capacity if buffer._late.num_stored > buffer.capacity else 0
    return rows[oldest:] + rows[:oldest]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=4),
    mode=st.sampled_from([*AutoresetMode]),
    scoring=st.sampled_from(["episode", "overlap", "step"]),
    capacity=st.integers(1, 40),
    flushes=st.lists(st.booleans(), min_size=1, max_size=40),
)
def test_against_a_simple_model(lengths, mode, scoring, capacity, flushes):
    """The model is a list of all transitions. In `Counting`, frame, reward and observation have the same number."""
    bases = [Counting(own, first=10_000 * number) for number, own in enumerate(lengths)]
    options = {"scoring": "step"} if scoring == "step" else {"overlap": scoring == "overlap"}
    envs = vlmrm_gym.VLMRewardVectorEnv(
        [lambda b=b: b for b in bases], reward="reward_models:PixelReward", autoreset_mode=mode, **options
    )
    large, small = ReplayBuffer(10_000, envs), ReplayBuffer(capacity, envs)
    rng = np.random.default_rng(0)
    observations, _ = envs.reset(seed=0)
    expected = set()
    ended = np.zeros(len(bases), dtype=bool)
    for flush in flushes:
        if mode == AutoresetMode.DISABLED and ended.any():
            observations, infos = envs.reset(options={"reset_mask": ended})
            large.add_rewards(infos), small.add_rewards(infos)
        counts = [len(base.expected_rewards) for base in bases]
        actions = rng.integers(2, size=len(bases))
        next_observations, rewards, terminations, truncations, infos = envs.step(actions)
        for buffer in (large, small):
            buffer.add(observations, actions, next_observations, rewards, terminations, truncations, infos)
        for i, base in enumerate(bases):
            if len(base.expected_rewards) > counts[i]:
                count = base.expected_rewards[-1]
                expected.add((observations[i].item(), actions[i], count, count, float(terminations[i])))
        observations, ended = next_observations, terminations | truncations
        if flush:
            infos = envs.flush()
            large.add_rewards(infos), small.add_rewards(infos)
            assert large.num_pending == 0
        assert set(contents(large)) <= expected
        assert len(large) + large.num_pending == len(expected)
    infos = envs.flush()
    large.add_rewards(infos), small.add_rewards(infos)
    stored = contents(large)
    assert len(stored) == len(expected)
    assert set(stored) == expected
    assert contents(small) == stored[-capacity:]
    envs.close()


def test_samples_are_uniform_over_transitions():
    envs = vlmrm_gym.VLMRewardVectorEnv(
        [lambda: Counting([4])] * 2, reward="reward_models:PixelReward", autoreset_mode="SameStep"
    )
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
    own = buffer.state_dict()  # states of random generators differ between kinds of devices: a GPU's has 16 bytes
    buffer.load_state_dict({**own, "generator": torch.zeros(16, dtype=torch.uint8)})
    assert torch.equal(buffer.state_dict()["generator"], own["generator"])
    envs.close()


@pytest.mark.parametrize(
    ("door", "overlap", "added"), [("reset", False, False), ("reset", False, True), ("flush", True, False)]
)
def test_missed_rewards_go_to_no_other_transition(door, overlap, added):
    """After a reset or a flush in the middle of episodes, whether or not their rewards were added."""
    bases = [lambda: Counting([7]), lambda: Counting([5], first=1_000)]
    envs = vlmrm_gym.VLMRewardVectorEnv(bases, reward="reward_models:PixelReward", overlap=overlap)
    buffer, count = ReplayBuffer(100, envs), 0
    observations, _ = envs.reset(seed=0)
    for step in range(30):
        if step in (3, 10):
            observations, infos = (observations, envs.flush()) if door == "flush" else envs.reset()
            if added:
                buffer.add_rewards(infos)
        results = envs.step(np.zeros(2, dtype=int))
        buffer.add(observations, np.zeros(2, dtype=int), *results)
        count += int(results[4]["_task_reward"].sum())
        observations = results[0]
    buffer.add_rewards(envs.flush())
    assert all(reward == count for _, _, count, reward, _ in contents(buffer))
    assert buffer.num_pending == 0
    if added:
        assert len(buffer) == count
    envs.close()


def test_a_step_whose_reward_is_refused_leaves_nothing_that_the_next_reward_could_go_to():
    envs = vlmrm_gym.VLMRewardVectorEnv([Counting], reward="reward_models:PixelReward", scoring="step")
    buffer, actions = ReplayBuffer(5, envs), np.zeros(1, dtype=int)
    observations, _ = envs.reset(seed=0)
    *results, infos = envs.step(actions)
    infos["vlm_rewards"][0][:] = np.nan
    with pytest.raises(RuntimeError, match="not finite"):
        buffer.add(observations, actions, *results, infos)
    buffer.add(results[0], actions, *envs.step(actions))
    assert [row[3] for row in contents(buffer)] == [3.0]
    envs.close()


def test_bad_input():
    envs = vlmrm_gym.VLMRewardVectorEnv([lambda: Counting([2])], reward="reward_models:PixelReward")
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
        ({"stored": 6}, r"`state` must have 5 rows of observations\. Received 0"),  # as of a higher capacity
        ({"observations": torch.empty(0, 4)}, r"observations, float32 \(1,\)\. Received 0 of float32 \(4,\)"),
    ):
        with pytest.raises(ValueError, match=why):
            buffer.load_state_dict({**buffer.state_dict(), **state})
    envs.close()

    nested = gym.spaces.Dict(a=gym.spaces.Dict(b=Counting().observation_space))
    for name, rule in (("observation", "space, or a Dict of such"), ("action", "space")):
        other = Counting()
        setattr(other, f"{name}_space", nested)
        match = rf"`envs.single_{name}_space` must be a box or discrete {rule}. Received Dict"
        with pytest.raises(ValueError, match=match):
            ReplayBuffer(5, gym.vector.SyncVectorEnv([lambda o=other: o]))


def test_observations_that_are_dictionaries():
    """Every transition is stored with its reward and its own next observation, the last one of an episode included."""
    bases = [CountingDict([3, 4]), CountingDict([5], first=1_000)]
    envs = vlmrm_gym.VLMRewardVectorEnv(
        [lambda b=b: b for b in bases], reward="reward_models:PixelReward", autoreset_mode="SameStep", overlap=True
    )
    buffer = ReplayBuffer(500, envs, seed=3)
    observations, _ = envs.reset(seed=0)
    actions = np.zeros(2, dtype=int)
    for _ in range(30):
        results = envs.step(actions)
        buffer.add(dict(reversed(observations.items())), actions, *results)
        observations = results[0]
    buffer.add_rewards(envs.flush())
    state = buffer.state_dict()
    expected_counts = [count for base in bases for count in base.expected_rewards]
    assert sorted(state["rewards"].tolist()) == sorted(expected_counts)
    for name, counts in (("next_observations", state["rewards"]), ("observations", state["rewards"] - 1)):
        expected = [CountingDict.dictionary(np.array([count])) for count in counts]
        for key, space in bases[0].observation_space.items():
            stored = state[f"{name}.{key}"].numpy()
            np.testing.assert_array_equal(stored, [one[key] for one in expected])
            assert stored.dtype == space.dtype
    batch = buffer.sample(200)
    assert set(batch.observations) == set(batch.next_observations) == {"count", "phase", "bits"}
    assert (batch.observations["bits"].shape, batch.observations["phase"].shape) == ((200, 3), (200,))
    np.testing.assert_array_equal(batch.next_observations["count"][:, 0], batch.rewards)
    np.testing.assert_array_equal(batch.observations["count"][:, 0] + 1, batch.rewards)

    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    file.seek(0)
    again = ReplayBuffer(500, envs)
    again.load_state_dict(torch.load(file, weights_only=True))
    np.testing.assert_array_equal(
        again.sample(50).next_observations["count"], buffer.sample(50).next_observations["count"]
    )
    plain = vlmrm_gym.VLMRewardVectorEnv([Counting] * 2, reward="reward_models:PixelReward")
    with pytest.raises(ValueError, match=r"rows of observations\. Received 0"):
        ReplayBuffer(500, plain).load_state_dict(buffer.state_dict())
    envs.close()
    plain.close()
