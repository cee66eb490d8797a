"""Stored frames of environments that render with Gymnasium's viewer: the viewer's OpenGL context."""

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from changing_env import ChangingEnv

import vlmrm_gym

pytestmark = [
    pytest.mark.usefixtures("no_collection"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Containing(gym.Env):
    """Renders through an environment that it contains, as mazes do."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self):
        self.inner = ChangingEnv(size=48)
        self.observation_space, self.action_space = self.inner.observation_space, self.inner.action_space

    def reset(self, *, seed=None, options=None):
        return self.inner.reset(seed=seed)

    def step(self, action):
        return self.inner.step(action)

    def render(self):
        return self.inner.render()

    def close(self):
        self.inner.close()


def brightness(frames):
    return frames.mean((1, 2, 3))


def test_an_environment_that_is_made_and_closed_in_between_changes_no_stored_frame():
    rewards = []
    for interrupt in (False, True):
        env = vlmrm_gym.VLMReward(Containing(), reward=brightness)
        env.reset(seed=0)
        for step in range(4):
            if interrupt and step == 2:
                other = Containing()
                other.reset(seed=0)
                other.render()
                other.close()
            rewards.append(env.step(np.array([0.5]))[1])
        assert env.render().mean() > 20
        env.close()
    assert min(rewards) > 20
    np.testing.assert_array_equal(rewards[:4], rewards[4:])


def test_other_viewers_keep_their_context():
    """Storing a frame leaves the context current that was current before."""
    env, other = vlmrm_gym.VLMReward(Containing(), reward=brightness), ChangingEnv(size=48)
    env.reset(seed=0), other.reset(seed=0)
    env.step(np.array([0.5]))
    expected = other.render()
    env.step(np.array([0.5]))
    np.testing.assert_array_equal(other.render(), expected)
    env.close(), other.close()


def test_a_viewer_that_can_no_longer_draw_is_an_error():
    """Not a reward for a black frame."""
    env = vlmrm_gym.VLMReward(Containing(), reward=brightness)
    env.reset(seed=0)
    env.step(np.array([0.5]))
    env.unwrapped.inner.close()
    with pytest.raises(RuntimeError, match="is black because its MuJoCo viewer can no longer draw"):
        env.step(np.array([0.5]))
    env.close()


def test_a_black_scene_is_scored():
    env = vlmrm_gym.VLMReward(Containing(), reward=brightness)
    env.reset(seed=0)
    assert env.step(np.array([0.5]))[1] > 20
    viewer = env.unwrapped.inner.mujoco_renderer.viewer
    viewer.scn.flags[mujoco.mjtRndFlag.mjRND_SKYBOX] = False
    viewer.vopt.geomgroup[:] = 0
    viewer.vopt.sitegroup[:] = 0
    assert env.step(np.array([0.5]))[1] == 0
    env.close()
