"""Vector environments that cannot be scored are refused, each by a message that says why."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from counting_env import Counting
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorWrapper

import vlmrm_gym


def make(env, **options):
    return vlmrm_gym.VLMRewardVectorEnv(env, reward="reward_models:PixelReward", **options)


def cart_pole(**options):
    return gym.make("CartPole-v1", render_mode="rgb_array", **options)


def scored_cart_pole():
    return gym.make("VLMRM/CartPole-v1", reward=lambda frames: frames.mean((1, 2, 3)))


class Redrawn(gym.Wrapper):
    def render(self):
        return 255 - self.env.render()


class PlainMetadata(gym.Wrapper):
    """Hides what is inside from those who read its metadata."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012


ONE = Counting()
LIMITED = [lambda: gym.wrappers.TimeLimit(ONE, 5), Counting, lambda: gym.wrappers.TimeLimit(ONE, 5)]
TWICE = r"`env` must have a different .* twice, also as number 2\. Each"  # their episodes would be mixed
SCORED = r"`env` must not be scored already\. Received .* has a {} in it"
REFUSED = {
    "none": (lambda: [], r"`env` must be a vector environment, or a list of functions .*Received \[\]"),
    "no frames": (lambda: [lambda: gym.make("CartPole-v1")], '`env` must be made with render_mode="rgb_array"'),
    "some states": (lambda: [cart_pole, lambda: Redrawn(cart_pole())], "that are all drawn from their states, or none"),
    "one twice": (lambda: SyncVectorEnv([lambda: ONE, Counting, lambda: ONE]), TWICE),
    "one twice in wrappers": (lambda: LIMITED, TWICE),
    "scored": (
        lambda: gym.wrappers.vector.RecordEpisodeStatistics(make([Counting] * 2)),
        SCORED.format("VLMRewardVectorEnv"),
    ),
    "scored in processes": (lambda: AsyncVectorEnv([scored_cart_pole]), SCORED.format("VLMReward")),
    "scored and hidden": (lambda: [lambda: PlainMetadata(scored_cart_pole())], SCORED.format("VLMReward")),
}


@pytest.mark.parametrize(("made", "message"), REFUSED.values(), ids=REFUSED)
def test_environments_that_cannot_be_scored(made, message):
    envs = made()
    with pytest.raises(ValueError, match=message):
        make(envs)
    if not isinstance(envs, list):
        envs.close()


def test_options_that_do_not_fit_the_environments(monkeypatch):
    changed = "`autoreset_mode` cannot change that of a vector environment. Received 'SameStep'"
    with pytest.raises(ValueError, match=changed):
        make(SyncVectorEnv([Counting]), autoreset_mode="SameStep")
    monkeypatch.setattr("vlmrm_gym.rewards.devices.resolve_device", lambda device, parameter: device)
    with pytest.raises(ValueError, match=r"`devices` must be at most one for each worker. Received 2 devices"):
        make([Counting], devices=["cuda:0", "cuda:1"], num_workers=1)


def test_wrappers_that_drop_states_and_frames_of_differing_size_are_refused():
    class DropsInfos(VectorWrapper):
        def step(self, actions):
            return *self.env.step(actions)[:4], {}

    envs = make(DropsInfos(SyncVectorEnv([Counting] * 2)))
    envs.reset(seed=0)
    with pytest.raises(RuntimeError, match=r"Environments \[0 1\] were stepped, but states came from \[\]"):
        envs.step(np.zeros(2, dtype=int))
    envs = make([lambda: Counting(), lambda: Counting(size=3)])
    with pytest.raises(ValueError, match=r"`env` must have environments that render frames of one size. Received"):
        envs.reset(seed=0)


def test_copies_and_calls_after_close_are_refused():
    envs = make([Counting])
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"VLMRewardVectorEnv cannot be copied or pickled: .*pass on a function"):
            duplicate(envs)
    envs.reset(seed=0)
    envs.close()
    envs.close()
    for call in (envs.reset, envs.flush, envs.render, lambda: envs.step(np.zeros(1, dtype=int))):
        with pytest.raises(ClosedEnvironmentError, match="has been closed"):
            call()


@pytest.mark.parametrize("scoring", ["episode", "step"])
@pytest.mark.parametrize(
    "wrap",
    [
        gym.wrappers.vector.NormalizeReward,
        lambda envs: gym.wrappers.vector.TransformReward(envs, lambda rewards: rewards / 2),
        lambda envs: gym.wrappers.vector.ClipReward(gym.wrappers.vector.TransformReward(envs, abs), 0, 1),
    ],
    ids=["normalised", "transformed", "two wrappers"],
)
def test_wrappers_that_would_change_rewards_before_they_arrive_are_refused(wrap, scoring):
    envs = wrap(make([Counting] * 2, scoring=scoring))
    envs.reset(seed=0)
    if scoring == "step":
        assert np.isfinite(envs.step(np.zeros(2, dtype=int))[1]).all()
    else:
        with pytest.raises(ValueError, match=r"`env` must not be wrapped in .*Reward: rewards are NaN until"):
            envs.step(np.zeros(2, dtype=int))
    envs.close()


def test_statistics_of_rewards_that_arrive_later_are_warned_of_once():
    envs = gym.wrappers.vector.RecordEpisodeStatistics(make([Counting] * 2))
    envs.reset(seed=0)
    with pytest.warns(UserWarning, match="RecordEpisodeStatistics sums up rewards before they arrive"):
        envs.step(np.zeros(2, dtype=int))
    envs.step(np.zeros(2, dtype=int))
    envs.close()
    inside = make(gym.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv([lambda: Counting([2])] * 2)))
    inside.reset(seed=0)
    inside.step(np.zeros(2, dtype=int))
    assert np.isfinite(inside.step(np.zeros(2, dtype=int))[4]["episode"]["r"]).all()
    inside.close()
