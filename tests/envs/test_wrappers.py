"""VLMReward: any environment that renders."""

import re

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT
from counting_env import Counting
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded

import vlmrm_gym
from vlmrm_gym import CLIPReward
from vlmrm_gym.states import make_renderer
from vlmrm_gym.tasks.cartpole import CartPole


def test_an_environment_that_is_scored_already_is_refused():
    """The environment's own reward would be unknown."""
    env = gym.make("VLMRM/CartPole-v1", reward=lambda frames: frames.mean((1, 2, 3)))
    with pytest.raises(ValueError, match=r"`env` must not be scored already\. Received .* has a VLMReward in it"):
        vlmrm_gym.VLMReward(env, prompt=TASK_PROMPT)
    env.close()


def test_rewards_score_what_is_rendered_and_the_base_reward_is_reported():
    """Contract 1 and 7, on an environment that terminates by itself."""
    env = vlmrm_gym.VLMReward(gym.make("CartPole-v1", render_mode="rgb_array"), prompt=TASK_PROMPT)
    score = CLIPReward("tiny", prompt=TASK_PROMPT)
    env.reset(seed=0)
    renderer = make_renderer(env.unwrapped).at_size(score.render_size)
    terminated = False
    while not terminated:
        _, reward, terminated, _, info = env.step(0)
        assert reward == pytest.approx(score(renderer.render(renderer.capture(env)[None]))[0], abs=1e-6)
        assert reward == pytest.approx(score(env.render()[None])[0], abs=0.02)
        assert info["task_reward"] == 1.0


@pytest.mark.parametrize("env_id", ["MountainCarContinuous-v0", "Acrobot-v1", "FrozenLake-v1"])
@pytest.mark.filterwarnings("ignore:The bundled model does not know")
def test_observations_dynamics_and_seeding_stay_the_environments(env_id):
    """Contract 9."""
    base = gym.make(env_id, render_mode="rgb_array")
    env = vlmrm_gym.VLMReward(gym.make(env_id, render_mode="rgb_array"), prompt="reach the goal", model="tiny")
    np.testing.assert_array_equal(base.reset(seed=5)[0], env.reset(seed=5)[0])
    base.action_space.seed(5)
    for _ in range(20):
        action = base.action_space.sample()
        expected, task_reward, terminated, truncated, _ = base.step(action)
        observation, _, *ends, info = env.step(action)
        np.testing.assert_array_equal(observation, expected)
        assert ends == [terminated, truncated]
        assert info["task_reward"] == task_reward
        if terminated or truncated:
            break
    base.close()
    env.close()


def test_spec_of_a_wrapped_environment_makes_it_again():
    env = vlmrm_gym.VLMReward(gym.make("CartPole-v1", render_mode="rgb_array"), prompt=["an upright pole", "balance"])
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    env.reset(seed=0), again.reset(seed=0)
    assert env.step(1)[1] == again.step(1)[1]


def test_a_registered_task_renders_with_render_mode_none_and_the_task_reward_is_added_by_its_weight():
    """Scoring needs frames. Training scripts pass None if they record no videos."""

    def first_reward(**kwargs):
        env = gym.make("VLMRM/CartPole-v1", render_mode=None, **kwargs)
        env.reset(seed=0)
        reward = env.step(0)[1]
        assert env.render().shape == (400, 600, 3)
        return reward

    assert first_reward(task_reward_weight=0.25) == pytest.approx(first_reward() + 0.25)


def test_what_is_no_environment_that_renders_arrays_is_refused():
    for env, message in (
        ("CartPole-v1", r"Received 'CartPole-v1'\. Pass one environment: gym\.make\(\.\.\., render_mode="),
        (gym.vector.SyncVectorEnv([CartPole]), r"Received SyncVectorEnv.*Use `VLMRewardVectorEnv` for vector"),
    ):
        with pytest.raises(TypeError, match=r"`env` must be a gymnasium\.Env\. " + message):
            vlmrm_gym.VLMReward(env, prompt=TASK_PROMPT)
    with pytest.raises(
        ValueError, match=r'`env` must be made with render_mode="rgb_array".*Received render_mode=\'ansi'
    ):
        vlmrm_gym.VLMReward(gym.make("FrozenLake-v1", render_mode="ansi"), prompt="reach the goal")


def test_stable_baselines3_trains_on_it():
    from stable_baselines3 import DQN

    model = DQN("MlpPolicy", gym.make("VLMRM/CartPole-v1", episode_length=10), learning_starts=10, device="cpu", seed=0)
    model.learn(30)
    assert model.replay_buffer.rewards[:30].std() > 0


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCarContinuous-v0"])
def test_rendering_before_a_reset_is_refused(env_id):
    env = vlmrm_gym.VLMReward(gym.make(env_id, render_mode="rgb_array"), reward=lambda frames: frames.mean((1, 2, 3)))
    with pytest.raises(ResetNeeded, match="Call `reset` first"):
        env.render()
    env.close()


class Paying(Counting):
    """`Counting` whose own reward is what it is told."""

    def __init__(self, reward):
        super().__init__()
        self.reward = reward

    def step(self, action):
        observation, _, *results = super().step(action)
        return observation, self.reward, *results


def one(env, **options):
    return vlmrm_gym.VLMReward(env, reward="reward_models:PixelReward", **options)


def several(env, **options):
    return vlmrm_gym.VLMRewardVectorEnv([lambda: env], reward="reward_models:PixelReward", **options)


@pytest.mark.parametrize(("door", "action"), [(one, 0), (several, np.zeros(1, dtype=int))])
def test_an_own_reward_is_one_number_of_any_kind_and_finite_where_it_is_added(door, action):
    """A NaN would look like a reward that is yet to be scored."""

    def step(reward, **options):
        env = door(Paying(reward), **options)
        env.reset(seed=0)
        return env.step(action)[4]["task_reward"]

    for reward in (None, np.zeros(1), [0.5], "0.5"):
        with pytest.raises(ValueError, match=r"`env` must return one number as its own reward. Received .*<Paying"):
            step(reward)
    for reward in (3, 3.0, np.float32(3), np.array(3), torch.tensor(3.0)):
        task_reward = step(reward)
        assert task_reward == 3.0
        assert isinstance(task_reward, float) or task_reward.dtype == np.float64
    for reward, weight in ((np.nan, 0.5), (1.0, 1e39)):  # float32 cannot hold the second
        message = rf"`task_reward_weight` is {re.escape(str(weight))}, so .* Received {reward} from environment 0"
        with pytest.raises(ValueError, match=message):
            step(reward, task_reward_weight=weight)


class OldestFrame(vlmrm_gym.RewardModel):
    """The number that the oldest of the last 3 frames encodes."""

    clip_length, clip_stride, batch_size = 3, 1, 4

    def encode(self, clips):
        return clips[:, 0, 0, 0].astype(np.int64) @ [[1], [256], [65536]]


def test_an_environment_that_resets_itself_is_refused():
    """Its clips would reach into the episode before, and the step that only resets would have a reward."""
    for env in (gym.wrappers.Autoreset(Counting()), gym.wrappers.TimeLimit(gym.wrappers.Autoreset(Counting()), 5)):
        with pytest.raises(ValueError, match=r"`env` must not reset itself: .*Autoreset\(VLMReward\(env\)\)"):
            one(env)


def oldest_frames(env, steps):
    env.reset(seed=0)
    return [env.step(0)[1] for _ in range(steps)]


class ResetsItself(gym.Wrapper):
    """Resets in the step after the end, and says so nowhere."""

    ended = False

    def step(self, action):
        results = (*self.env.reset(), 0.0, False, False) if self.ended else self.env.step(action)
        if self.ended:
            observation, info, *results = results
            results = (observation, *results, info)
        self.ended = results[2] or results[3]
        return results


def test_clips_end_with_their_episode():
    """Episodes of 4 count 2 to 5 and 7 to 10: clips of 3 begin anew, and the step that only resets has no reward.

    Where nobody calls `reset`, its frame is 6: no later clip has one of the first episode's, 2 to 5.
    """
    env = gym.wrappers.Autoreset(vlmrm_gym.VLMReward(Counting([4]), reward=OldestFrame()))
    assert oldest_frames(env, 9) == [2, 2, 2, 3, 0, 7, 7, 7, 8]
    env = vlmrm_gym.VLMReward(ResetsItself(Counting([4])), reward=OldestFrame())
    assert oldest_frames(env, 9) == [2, 2, 2, 3, 6, 6, 6, 7, 8]
    env.close()
