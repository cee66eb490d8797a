"""VLMVecEnv: how ends of episodes, their last observations and successes reach Stable-Baselines3."""

import inspect

import gymnasium as gym
import numpy as np
import pytest
from counting_env import Counting
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common import env_util

import vlmrm_gym
from vlmrm_gym.sb3 import DeferredReplayBuffer, VLMVecEnv, make_vec_env
from vlmrm_gym.tools.train.environments import TaskRewardVectorEnv


class Ending(Counting):
    """Episodes of 3 steps, the last of which terminates or truncates, or both; successes as they are told."""

    def __init__(self, terminates=True, truncates=False, successes=(), **options):
        super().__init__([3], **options)
        self.ends, self.successes = (terminates, truncates), successes

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            terminated, truncated = self.ends
        if self.successes:
            info = {"success": self.successes[self.step_of_episode - 1]}
        return observation, reward, terminated, truncated, info


def scored(*bases, **options):
    options = {"reward": "reward_models:PixelReward", "autoreset_mode": "SameStep", **options}
    return vlmrm_gym.VLMRewardVectorEnv([lambda base=base: base for base in bases], **options)


def steps(envs, count):
    envs.reset()
    return [envs.step(np.zeros(envs.num_envs, dtype=int)) for _ in range(count)]


@pytest.mark.parametrize(
    ("terminates", "truncates", "scoring"),
    [(True, False, "episode"), (False, True, "step"), (True, True, "episode")],
)
def test_only_a_time_limit_that_does_not_terminate_is_bootstrapped(terminates, truncates, scoring):
    """Stable-Baselines3's convention: an action that also terminates leads to no state with a value.

    Ends, and only these, have a last observation.
    """
    envs = VLMVecEnv(scored(Ending(terminates, truncates), Ending(True, False, first=100), scoring=scoring))
    results = steps(envs, 6)
    assert [dones.tolist() for _, _, dones, _ in results] == [[False] * 2, [False] * 2, [True] * 2] * 2
    truncated = [[info["TimeLimit.truncated"] for info in infos] for *_, infos in results]
    assert truncated == [[False] * 2, [False] * 2, [truncates and not terminates, False]] * 2
    seen = [infos[0] for *_, infos in results]
    last = [info["terminal_observation"].tolist() if "terminal_observation" in info else None for info in seen]
    assert last == [None, None, [4], None, None, [8]]
    assert not any(key in info for info in seen for key in ("final_obs", "final_info"))
    lengths = [[info["episode"]["l"] for info in infos if "episode" in info] for *_, infos in results]
    assert lengths == [[], [], [3, 3]] * 2
    buffer = DeferredReplayBuffer(20, envs.observation_space, envs.action_space, "cpu", n_envs=2)
    observations = envs.reset()
    for _ in range(6):
        after, rewards, dones, infos = envs.step(np.zeros(2, dtype=int))
        buffer.add(observations, after, np.zeros(2), rewards, dones, infos)
        observations = after
    samples = buffer._get_samples(np.arange(12))  # their `dones` are 1 where the action terminated the episode only
    ends = zip(samples.rewards[:, 0].tolist(), samples.dones[:, 0].tolist(), strict=True)
    own = sorted((reward, done) for reward, done in ends if reward < 100)
    assert [done for _, done in own] == [0, 0, float(terminates)] * 2
    envs.close()


def test_an_episode_succeeds_from_the_threshold_on():
    """2 of 3 steps; the last step's success counts, which is in `final_info`."""
    for threshold, expected in ((2 / 3, True), (0.7, False)):
        envs = VLMVecEnv(scored(Ending(successes=[False, True, True])), success_threshold=threshold)
        infos = [infos[0] for *_, infos in steps(envs, 3)]
        assert [info.get("is_success") for info in infos] == [None, None, expected]
        assert [info["success"] for info in infos] == [False, True, True]
        assert infos[2]["episode"]["success"] == 2 / 3
        envs.close()


def test_task_rewards_as_the_reward_keep_the_last_observation():
    """As training on the environment's own reward makes them."""
    envs = VLMVecEnv(TaskRewardVectorEnv(SyncVectorEnv([Ending], autoreset_mode="SameStep")))
    results = steps(envs, 3)
    assert [rewards.tolist() for _, rewards, *_ in results] == [[0.5]] * 3
    assert results[2][3][0]["terminal_observation"].tolist() == [4]
    assert results[2][3][0]["episode"]["r"] == 1.5
    envs.close()


def test_rewards_that_arrive_between_two_steps_are_given_out_together():
    """Where those in between were lost, only the newest: an info has those of transitions in a row."""
    envs = VLMVecEnv(scored(Ending()))
    for starts, expected in (((3, 5), (3, [3, 4, 5, 6])), ((7, 10), (10, [10, 11]))):
        for start in starts:
            envs._add_rewards([{"vlm_reward_start": start, "vlm_rewards": np.arange(start, start + 2)}])
        info = envs._pop_late(0)
        assert (info["vlm_reward_start"], info["vlm_rewards"].tolist()) == expected
        assert envs._pop_late(0) == {}
    envs.close()


class Long(gym.Wrapper):
    """An environment of a user's own, without a time limit."""

    def __init__(self, render_mode, gravity=9.8):
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode).unwrapped)
        self.unwrapped.gravity = gravity


@pytest.mark.parametrize("env_id", [Long, lambda render_mode, gravity: Long(render_mode, gravity)])
def test_make_vec_env_takes_what_stable_baselines3s_takes(env_id):
    """An ID, a class or a function, and the same first arguments in the same order."""
    theirs = list(inspect.signature(env_util.make_vec_env).parameters)[:3]
    ours = list(inspect.signature(make_vec_env).parameters)
    assert ours[:4] == [*theirs, "env_kwargs"]
    options = {"reward": lambda frames: frames.mean((1, 2, 3)), "episode_length": 3}
    envs = make_vec_env(env_id, 2, 5, {"gravity": 1.5}, **options)
    assert [env.unwrapped.gravity for env in envs.envs.unwrapped.envs] == [1.5, 1.5]
    alone = gym.make("CartPole-v1")
    expected = [alone.reset(seed=seed)[0] for seed in (5, 6)]
    np.testing.assert_array_equal(envs.reset(), expected)
    results = [envs.step(np.array([0, 1])) for _ in range(3)]
    assert [dones.all() for _, _, dones, _ in results] == [False, False, True]
    assert "is_success" not in results[-1][3][0]  # the environment does not say
    envs.close()


def test_make_vec_env_gives_keyword_arguments_to_our_environments_too():
    envs = make_vec_env("VLMRM/CartPole-v1", n_envs=1, env_kwargs={"episode_length": 2})
    other = make_vec_env("VLMRM/CartPole-v1", num_envs=2)
    assert (envs.num_envs, other.num_envs) == (1, 2)
    envs.close(), other.close()
