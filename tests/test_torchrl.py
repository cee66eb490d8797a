"""TorchRL: environments, and the buffer into which rewards are written when they arrive."""

import warnings
from itertools import islice

import gymnasium as gym
import numpy as np
import pytest
from counting_env import Counting
from gymnasium.vector import SyncVectorEnv
from relabelled import Learning, paid, times

import vlmrm_gym

pytest.importorskip("torchrl", reason='it needs the extra "torchrl"')

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # TorchRL's own
    from torchrl.collectors import Collector
    from torchrl.envs.utils import check_env_specs
    from torchrl.modules import RandomPolicy

    from vlmrm_gym.torchrl import LateReplayBuffer, VLMRewardEnv, make_env

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
TASKS = ["VLMRM/CartPole-v1", "VLMRM/MountainCarContinuous-v0", "VLMRM/Humanoid-kneel-v0"]


def counting(lengths, **options):
    """Environments whose rewards are the numbers that observations have."""
    bases = [Counting(own, first=100_000 * number) for number, own in enumerate(lengths)]
    options = {"reward": "reward_models:PixelReward", "autoreset_mode": "Disabled", **options}
    return VLMRewardEnv(vlmrm_gym.VLMRewardVectorEnv([lambda base=base: base for base in bases], **options))


def collect(env, frames, batches):
    """Batches of so many transitions. A collector that has a total closes its environments at the end."""
    return islice(Collector(env, RandomPolicy(env.action_spec), frames_per_batch=frames, total_frames=-1), batches)


@pytest.mark.parametrize("env_id", TASKS)
@pytest.mark.parametrize("scoring", ["episode", "step"])
def test_registered_ids_are_environments_of_torchrl(env_id, scoring):
    env = make_env(env_id, num_envs=2, seed=3, episode_length=3, scoring=scoring)
    check_env_specs(env)
    env.set_seed(5)
    first = env.rollout(3)
    assert env.batch_size == (2,)
    plain = gym.make_vec(env_id, 2, episode_length=3)
    expected, _ = plain.reset(seed=5)
    np.testing.assert_array_equal(first["observation"][:, 0], expected)
    assert first["next", "truncated"][:, -1].all()
    assert not first["next", "terminated"].any()
    assert first["next", "reward"].isfinite().all().item() is (scoring == "step")
    plain.close(), env.close()


def test_other_environments_are_taken_by_their_class_and_modes_that_reset_themselves_are_refused():
    env = make_env(Counting, 2, reward="reward_models:PixelReward", seed=0)
    assert env.rollout(2)["next", "reward"].shape == (2, 2, 1)
    env.close()
    envs = vlmrm_gym.VLMRewardVectorEnv([Counting], reward="reward_models:PixelReward", autoreset_mode="SameStep")
    with pytest.raises(ValueError, match=r'must leave resets to TorchRL. Received .SameStep.. .*autoreset_mode="Disab'):
        VLMRewardEnv(envs)
    envs.close()
    with pytest.raises(TypeError, match=r"`env` must be a VLMRewardEnv, or transforms around one. Received 3"):
        LateReplayBuffer(3, 10, batch_size=2)


def test_the_last_observation_of_an_episode_is_the_true_one_and_termination_is_no_truncation():
    env = counting([[3], [2]])
    data = next(iter(collect(env, 12, 1)))
    numbers, after = data["observation"][..., 0], data["next", "observation"][..., 0]
    np.testing.assert_array_equal(after, numbers + 1)
    np.testing.assert_array_equal(data["next", "terminated"][0, :, 0], [0, 0, 1, 0, 0, 1])
    np.testing.assert_array_equal(data["next", "truncated"][1, :, 0], [0, 1, 0, 1, 0, 1])
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
def test_ten_thousand_transitions_have_the_rewards_of_their_states(overlap):
    """Contract 2: random lengths, batches that cut episodes, one reward each, and no other is sampled."""
    rng = np.random.default_rng(0)
    env = counting([rng.integers(1, 30, 60).tolist() for _ in range(4)], overlap=overlap)
    buffer = LateReplayBuffer(env, 12_000, batch_size=64)
    for data in collect(env, 500, 20):
        buffer.extend(data)
        if buffer.num_arrived:
            sample = buffer.sample()
            assert torch.equal(sample["next", "reward"].double(), sample["next", "observation"])
    assert buffer.num_arrived + buffer.num_pending == 10_000
    env.flush()
    buffer.receive()
    assert buffer.num_arrived == 10_000
    stored = buffer[:]
    assert torch.equal(stored["next", "reward"].double(), stored["next", "observation"])
    env.close()


def test_rewards_of_transitions_that_were_overwritten_are_dropped():
    """By the generations of TorchRL's writer: a slot may have been taken by another transition."""
    env = counting([[50], [7]])
    buffer = LateReplayBuffer(env, 30, batch_size=8)
    for data in collect(env, 20, 20):
        buffer.extend(data)
    env.flush()
    buffer.receive()
    stored = buffer[:]
    assert (buffer.num_arrived, buffer.num_pending) == (30, 0)
    assert torch.equal(stored["next", "reward"].double(), stored["next", "observation"])
    env.close()


def test_nothing_is_sampled_before_a_reward_has_arrived():
    env = counting([[50]])
    buffer = LateReplayBuffer(env, 100, batch_size=8)
    buffer.extend(env.rollout(10))
    with pytest.raises(RuntimeError, match="There is nothing to sample: all transitions wait for their rewards"):
        buffer.sample()
    env.close()


@pytest.mark.parametrize("learned", [False, True])
def test_stored_rewards_and_those_that_arrive_are_made_anew_by_another_head(learned):
    """Contract 13: also with a reward that has no head yet, whose transitions are not sampled before."""
    options = {"reward": Learning()} if learned else {}
    env = VLMRewardEnv(paid([[5], [4, 9]], autoreset_mode="Disabled", **options))
    buffer = LateReplayBuffer(env, 500, batch_size=16)

    def check(factor):
        env.flush()
        buffer.receive()
        stored = buffer[:]
        own = stored["next", "task_reward"].flatten() * 0.25
        expected = factor * stored["next", "observation"][:, 0].float() + own
        seen = stored["next", "reward"].flatten() - stored["vlm_features"][:, 0, 1]
        np.testing.assert_allclose(seen, expected, rtol=1e-6)
        assert buffer.num_arrived == len(buffer)

    policy = RandomPolicy(env.action_spec)
    buffer.extend(env.rollout(20, policy, break_when_any_done=False))
    if learned:
        assert buffer.num_arrived == 0
    env.envs.head.replace(times(3))
    if not learned:  # rewards of two heads
        buffer.extend(env.rollout(20, policy, break_when_any_done=False))
        with pytest.raises(RuntimeError, match=r"are not all of the newest head. Call `relabel"):
            buffer.sample()
    buffer.relabel(env.envs.head)
    buffer.sample()
    check(3)
    buffer.extend(env.rollout(20, policy, break_when_any_done=False))
    check(3)
    buffer.relabel(times(5))
    buffer.extend(env.rollout(20, policy, break_when_any_done=False))
    check(5)
    env.close()


def test_a_reward_without_features_cannot_be_relabelled():
    env = counting([[5]])
    buffer = LateReplayBuffer(env, 100, batch_size=8)
    with pytest.raises(RuntimeError, match=r"`relabel` needs features. .* return_features=True"):
        buffer.relabel(times(2))
    env.close()


def test_spaces_that_torchrl_has_no_spec_for_are_refused():
    class Text(Counting):
        def __init__(self):
            super().__init__()
            self.observation_space = gym.spaces.Text(3)

        def reset(self, **options):
            return "abc", super().reset(**options)[1]

    envs = vlmrm_gym.VLMRewardVectorEnv(
        SyncVectorEnv([Text], autoreset_mode="Disabled"), reward="reward_models:PixelReward"
    )
    with pytest.raises(ValueError, match=r"`envs` must have boxes and discrete spaces.*Received Text"):
        VLMRewardEnv(envs)
    envs.close()
