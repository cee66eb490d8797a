"""The worlds of cart-pole and mountain car: Gymnasium's, to the bit, without their terminations."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_match import check_environments_match

from vlmrm_gym.tasks.cartpole import CartPole
from vlmrm_gym.tasks.mountain_car import MountainCar


def at(position=0.0, velocity=0.0, angle=0.0, angular_velocity=0.0) -> CartPole:
    """A cart-pole in a state; the angle in degrees."""
    env = CartPole()
    env.reset(seed=0)
    env.state = np.array([position, velocity, np.deg2rad(angle), angular_velocity])
    return env


@pytest.mark.parametrize("seed", range(2))
def test_cart_pole_is_gymnasiums_until_that_terminates(seed):
    """Contract 9: bitwise."""
    base, ours = gym.make("CartPole-v1").unwrapped, CartPole()
    np.testing.assert_array_equal(base.reset(seed=seed)[0], ours.reset(seed=seed)[0])
    base.action_space.seed(seed)
    terminated = False
    while not terminated:
        action = base.action_space.sample()
        expected, expected_reward, terminated, _, _ = base.step(action)
        observation, reward, *ends, info = ours.step(action)
        np.testing.assert_array_equal(observation, expected)
        assert observation.dtype == expected.dtype
        assert (reward, info["success"], ends) == (expected_reward, not terminated, [False, False])


def test_the_angle_of_cart_pole_stays_wrapped():
    env = CartPole()
    env.reset(seed=0)
    angles = []
    for _ in range(1000):
        observation, _, *ends, _ = env.step(1)
        assert not any(ends)
        assert env.observation_space.contains(observation)
        angles.append(env.state[2])
    assert min(angles) < -np.pi / 2  # the pole went round
    assert max(angles) > np.pi / 2
    assert all(-np.pi < angle <= np.pi for angle in angles)


def test_the_cart_stops_at_the_end_of_the_track_and_can_leave_it_again():
    for side in (-1, 1):
        env = at(position=side * 2.39, velocity=side * 3.0)
        info = env.step(0 if side < 0 else 1)[4]
        assert env.state[:2].tolist() == [side * 2.4, 0.0]
        assert not info["success"]
        for _ in range(20):
            env.step(1 if side < 0 else 0)
        assert abs(env.state[0]) < 2.4


def test_success_means_pole_up_and_cart_on_the_track_and_is_paid_again_after_recovering():
    states = (0, 0), (11, 0), (-11, 2.3), (13, 0), (-90, 0), (180, 0), (0, 2.4)
    assert [at(position, angle=angle).is_up() for angle, position in states] == [True] * 3 + [False] * 4
    env = at(angle=13)
    assert env.step(0)[1] == 0.0
    env.state = np.zeros(4)
    assert env.step(0)[1] == 1.0


def drive(env, steps=200):
    """Push the way the car rolls, which takes it up to the flag."""
    observation, _ = env.reset(seed=0)
    for _ in range(steps):
        action = np.array([1.0 if observation[1] >= 0 else -1.0], dtype=np.float32)
        observation, *rest = env.step(action)
        yield action, observation, *rest


def test_mountain_car_is_gymnasiums_until_the_goal():
    """Contract 9: bitwise; and so is the reward at the goal."""
    base = gym.make("MountainCarContinuous-v0")
    check_environments_match(base, MountainCar(), num_steps=100, seed=5, info_comparison="superset")
    base.reset(seed=0)
    for action, observation, reward, terminated, _, info in drive(MountainCar()):
        expected, expected_reward, done, _, _ = base.step(action)
        assert (reward, terminated, info["success"]) == (expected_reward, False, done)
        assert observation[0] == expected[0]
        if done:
            assert reward > 99
            return
        np.testing.assert_array_equal(observation, expected)
    pytest.fail("the goal was not reached")


def test_the_goal_of_mountain_car_is_absorbing_until_a_reset():
    """Observations are not shared."""
    env = MountainCar()
    arrived = [(observation, reward) for _, observation, reward, *_, info in drive(env) if info["success"]]
    assert len(arrived) > 10
    assert len({float(position) for (position, _), _ in arrived}) == 1
    assert arrived[0][0][0] >= 0.45
    assert all(velocity == 0 for (_, velocity), _ in arrived)
    assert all(reward == pytest.approx(-0.1) for _, reward in arrived[1:])  # what pushing costs
    env.reset(seed=1)
    observation, *_, info = env.step(np.ones(1, dtype=np.float32))
    assert info["success"] is False
    assert observation[0] < 0
    before = observation.copy()
    env.step(np.ones(1, dtype=np.float32))
    np.testing.assert_array_equal(observation, before)


def test_frames_of_registered_ids_are_gymnasiums_but_for_textures():
    def first_frame(env_id, **kwargs):
        env = gym.make(env_id, **kwargs)
        env.reset(seed=0)
        return env.render().astype(int)

    brightness = lambda frames: frames.mean((1, 2, 3))  # noqa: E731
    for name, kwargs in (("CartPole-v1", {}), ("MountainCarContinuous-v0", {"textured": False})):
        own = first_frame(name, render_mode="rgb_array")
        np.testing.assert_array_equal(first_frame(f"VLMRM/{name}", reward=brightness, **kwargs), own)
    assert np.abs(first_frame("VLMRM/MountainCarContinuous-v0", reward=brightness) - own).mean() > 40
