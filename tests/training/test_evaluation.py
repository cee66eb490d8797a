"""Videos of evaluated policies."""

from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest

from vlmrm_gym.media import videos
from vlmrm_gym.rewards import CLIPReward
from vlmrm_gym.training.config import Config, RewardConfig, RLConfig
from vlmrm_gym.training.defaults import with_defaults
from vlmrm_gym.training.evaluation import FRAMES_AT_ONCE, record_video

LENGTH = 2 * FRAMES_AT_ONCE + 6


class Policy:
    """Follows the pole; of one observation or of many."""

    def predict(self, observation, deterministic):
        return (observation[..., 2] > 0).astype(np.int64), None


@pytest.fixture
def saved(monkeypatch):
    """Keyword arguments and the like of the videos that were written."""
    calls = []
    monkeypatch.setattr(videos, "save_video", lambda path, frames, rewards, title: calls.append((frames, rewards)))
    return calls


def config(reward):
    return with_defaults(
        Config(env_name="VLMRM/CartPole-v1", rl=RLConfig(episode_length=LENGTH), reward=RewardConfig(name=reward))
    )


def step_by_step(**kwargs):
    """Frames and rewards of the same episode, scored at every step."""
    with closing(gym.make("VLMRM/CartPole-v1", episode_length=LENGTH, **kwargs)) as env:
        observation, _ = env.reset(seed=7)
        frames, rewards, task_rewards, ended = [], [], [], False
        while not ended:
            observation, reward, terminated, truncated, info = env.step(Policy().predict(observation, True)[0])
            frames.append(env.render())
            rewards.append(reward)
            task_rewards.append(info["task_reward"])
            ended = terminated or truncated
    return frames, rewards, task_rewards


def test_a_video_has_the_frames_and_rewards_of_an_episode_scored_step_by_step(saved, tmp_path, monkeypatch):
    """Its frames are scored many at a time; it has the task's rewards where these are maximised."""
    sizes = []
    score = CLIPReward.__call__
    monkeypatch.setattr(CLIPReward, "__call__", lambda self, frames: sizes.append(len(frames)) or score(self, frames))
    record_video(config("clip"), Policy(), tmp_path / "a.mp4", seed=7)
    ((frames, rewards),) = saved
    assert sum(sizes) == len(frames)
    assert len(sizes) <= 6
    expected_frames, expected, expected_of_task = step_by_step()
    np.testing.assert_array_equal(frames, expected_frames)
    np.testing.assert_allclose(rewards, expected, atol=1e-5)
    record_video(config("ground_truth"), Policy(), tmp_path / "a.mp4", seed=7)
    np.testing.assert_allclose(saved[1][1], expected_of_task)
