"""The mountain car world."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_match import check_environments_match

from vlmrm_gym.envs import MountainCar

FULL_GAS = np.array([1.0], dtype=np.float32)


def drive(env, steps=200):
    """Push the way the car rolls, which takes it up to the flag."""
    observation, _ = env.reset(seed=0)
    for _ in range(steps):
        observation, *rest = env.step(np.array([1.0 if observation[1] >= 0 else -1.0], dtype=np.float32))
        yield observation, *rest


def test_until_the_goal_it_is_the_base_environment():
    """Contract 9: bitwise."""
    check_environments_match(
        gym.make("MountainCarContinuous-v0"), MountainCar(), num_steps=300, seed=5, info_comparison="superset"
    )


def test_until_the_goal_and_at_it_the_reward_is_the_base_environments():
    base = gym.make("MountainCarContinuous-v0")
    base.reset(seed=0)
    for observation, reward, terminated, _, info in drive(MountainCar()):
        action = np.array([1.0 if base.unwrapped.state[1] >= 0 else -1.0], dtype=np.float32)
        expected, base_reward, done, _, _ = base.step(action)
        assert reward == base_reward
        assert not terminated
        if done:
            assert info["success"]
            assert reward > 99
            assert observation[0] == expected[0]
            return
        np.testing.assert_array_equal(observation, expected)
    pytest.fail("the goal was not reached")


def test_the_goal_is_absorbing():
    arrived = [(observation, reward) for observation, reward, *_, info in drive(MountainCar()) if info["success"]]
    assert len(arrived) > 10
    positions = {float(observation[0]) for observation, _ in arrived}
    assert len(positions) == 1
    assert positions.pop() >= 0.45
    assert all(observation[1] == 0 for observation, _ in arrived)
    assert all(reward == pytest.approx(-0.1) for _, reward in arrived[1:])  # what pushing costs


def test_success_is_of_the_episode_and_cleared_by_reset():
    env = MountainCar()
    *_, (_, _, _, _, info) = drive(env)
    assert info["success"] is True
    env.reset(seed=1)
    observation, _, _, _, info = env.step(FULL_GAS)
    assert info["success"] is False
    assert observation[0] < 0


def test_observations_are_not_shared():
    env = MountainCar()
    first, *_ = env.step(FULL_GAS) if env.reset(seed=0) else ()
    before = first.copy()
    env.step(FULL_GAS)
    np.testing.assert_array_equal(first, before)


def test_textured_and_not():
    frames = {}
    for textured in (True, False):
        env = gym.make("VLMRM/MountainCarContinuous-v0", textured=textured)
        env.reset(seed=0)
        frames[textured] = env.render()
    base = gym.make("MountainCarContinuous-v0", render_mode="rgb_array")
    base.reset(seed=0)
    np.testing.assert_array_equal(frames[False], base.render())
    assert frames[True].shape == (400, 600, 3)
    assert np.abs(frames[True].astype(int) - frames[False]).mean() > 40


def test_bad_textured():
    with pytest.raises(ValueError, match=r"`textured` must be True or False\. Received 1"):
        gym.make("VLMRM/MountainCarContinuous-v0", textured=1)
