"""The cart-pole world: Gymnasium's, to the bit, without its terminations."""

import gymnasium as gym
import numpy as np
import pytest

from vlmrm_gym.envs import CartPole


def at(position=0.0, velocity=0.0, angle=0.0, angular_velocity=0.0) -> CartPole:
    """A world in a state; the angle in degrees."""
    env = CartPole(render_mode="rgb_array")
    env.reset(seed=0)
    env.state = np.array([position, velocity, np.deg2rad(angle), angular_velocity])
    return env


@pytest.mark.parametrize("seed", range(10))
def test_equals_gymnasium_to_the_bit_until_gymnasium_terminates(seed):
    base, ours = gym.make("CartPole-v1").unwrapped, CartPole()
    np.testing.assert_array_equal(base.reset(seed=seed)[0], ours.reset(seed=seed)[0])
    base.action_space.seed(seed)
    for _ in range(200):
        action = base.action_space.sample()
        expected, expected_reward, terminated, _, _ = base.step(action)
        observation, reward, *_, info = ours.step(action)
        np.testing.assert_array_equal(observation, expected)
        assert observation.dtype == expected.dtype
        assert reward == expected_reward
        assert info["success"] == (not terminated)
        if terminated:
            return
    raise AssertionError("the random policy should have failed")


def test_frames_are_gymnasiums():
    base, ours = gym.make("CartPole-v1", render_mode="rgb_array").unwrapped, CartPole(render_mode="rgb_array")
    base.reset(seed=3), ours.reset(seed=3)
    np.testing.assert_array_equal(base.render(), ours.render())


def test_nothing_terminates_and_the_angle_stays_wrapped():
    env = CartPole()
    env.reset(seed=0)
    angles = []
    for _ in range(1000):
        observation, _, terminated, truncated, _ = env.step(1)
        assert not terminated
        assert not truncated
        assert env.observation_space.contains(observation)
        angles.append(env.state[2])
    assert min(angles) < -np.pi / 2  # the pole went round
    assert max(angles) > np.pi / 2
    assert all(-np.pi < angle <= np.pi for angle in angles)


@pytest.mark.parametrize(("angular_velocity", "sign"), [(2.0, -1), (-2.0, 1)])
def test_angle_wraps_past_hanging_down(angular_velocity, sign):
    env = at(angle=sign * -179.5, angular_velocity=angular_velocity)
    env.step(0)
    assert np.sign(env.state[2]) == sign
    assert abs(np.rad2deg(env.state[2])) > 170


@pytest.mark.parametrize("side", [-1, 1])
def test_cart_stops_at_the_end_of_the_track(side):
    env = at(position=side * 2.39, velocity=side * 3.0)
    _, _, _, _, info = env.step(0 if side < 0 else 1)
    assert env.state[0] == side * 2.4
    assert env.state[1] == 0.0
    assert not info["success"]
    for _ in range(20):  # and can leave it again
        env.step(1 if side < 0 else 0)
    assert abs(env.state[0]) < 2.4


@pytest.mark.parametrize(
    ("angle", "position", "up"),
    [(0, 0, True), (11, 0, True), (-11, 2.3, True), (13, 0, False), (-90, 0, False), (180, 0, False), (0, 2.4, False)],
)
def test_success_means_pole_up_and_cart_on_the_track(angle, position, up):
    assert at(position, angle=angle).is_up() is up


def test_task_reward_pays_for_acting_while_up_and_again_after_recovering():
    env = at(angle=13)
    assert env.step(0)[1] == 0.0
    env.state = np.zeros(4)
    assert env.step(0)[1] == 1.0


def test_reset_bounds_are_honoured():
    observation, _ = CartPole().reset(seed=1, options={"low": 0.1, "high": 0.2})
    assert (observation >= 0.1).all()
    assert (observation <= 0.2).all()
