"""Rollouts: what they record, and the behaviours that play them."""

from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest
from counting_env import Counting

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.validation import find_time_limit
from vlmrm_gym.data.rollouts import constant_actions, play, random_actions
from vlmrm_gym.envs.make import make_base_env, make_external_env
from vlmrm_gym.states import StateView
from vlmrm_gym.tasks import TASKS
from vlmrm_gym.tools.train.evaluation import run_actions
from vlmrm_gym.tools.train.run_folder import RunError


@pytest.fixture
def cartpole():
    """The environment and its view."""
    env = make_base_env(TASKS[0], 50)
    view = StateView(env)
    yield env, view
    view.close()
    env.close()


def play_held(env, view, action, steps=30):
    return play(env, view, lambda observation: action, seed=3, steps=steps)


def test_a_rollout_records_what_a_loop_over_the_environment_sees(cartpole):
    env, view = cartpole
    rollout = play_held(env, view, 1)
    reference = make_base_env(TASKS[0], 50)
    expected, _ = reference.reset(seed=3)
    np.testing.assert_array_equal(rollout.observations[0], expected)
    np.testing.assert_array_equal(rollout.initial.rows[0], reference.unwrapped.state[::2])
    for step in range(30):
        expected, reward, _, _, info = reference.step(1)
        np.testing.assert_array_equal(rollout.observations[step + 1], expected)
        np.testing.assert_array_equal(rollout.states.rows[step], reference.unwrapped.state[::2])
        assert (rollout.task_rewards[step], rollout.success[step]) == (reward, info["success"])
    assert len(rollout) == len(rollout.states) == 30
    assert rollout.success.any()
    assert not rollout.success.all()
    np.testing.assert_array_equal(rollout.actions, np.ones(30, dtype=np.int64))
    assert [array.dtype for array in (rollout.task_rewards, rollout.terminated)] == [np.float64, np.bool_]
    reference.close()


class FloatFrames(Counting):
    """Renders numbers from 0 to 1, as some simulators do."""

    def render(self):
        return super().render().astype(np.float32) / 255


def test_frames_and_rewards_of_a_wrong_type_are_an_error_of_the_environment():
    env = FloatFrames()
    with closing(StateView(env)) as view, pytest.raises(InputError, match=r"uint8 \(H, W, 3\). Received float32"):
        play_held(env, view, 0)
    env = gym.make("CartPole-v1", render_mode="rgb_array", disable_env_checker=True)
    env = gym.wrappers.TransformReward(env, lambda _: np.zeros(1))
    with pytest.raises(InputError, match=r"`env` must return one number as its own reward. .* from <Transform"):
        play_held(env, StateView(env), 0)


def test_the_time_limit_of_a_function_is_that_of_its_wrappers():
    """`spec` is None for an environment that `gym.make` did not make."""
    env = gym.wrappers.TransformReward(gym.wrappers.TimeLimit(Counting(), 12), float)
    assert env.spec is None
    assert find_time_limit(env) == 12
    assert find_time_limit(gym.wrappers.TimeLimit(gym.make("CartPole-v1"), 700)) == 500  # of two, the shorter one


def test_an_episode_ends_with_the_environment_or_is_truncated():
    for length, steps, expected, terminates in ((3, 10, 3, True), (4, 10, 4, False), (3, 2, 2, False)):
        env = Counting(lengths=(length,))
        with closing(StateView(env)) as view:
            rollout = play_held(env, view, 0, steps)
        assert len(rollout) == len(rollout.actions) == len(rollout.observations) - 1 == expected
        assert (rollout.terminated | rollout.truncated).tolist() == [False] * (expected - 1) + [True]
        assert bool(rollout.terminated[-1]) is terminates
        assert np.isnan(rollout.success).all()
        assert rollout.states.rows.shape == (expected, 2, 2, 3)  # frames, as it cannot be drawn from its states


def test_seeds_decide_the_episode_and_the_actions(cartpole):
    env, view = cartpole

    def observe(seed, make=random_actions):
        act = make(env.action_space, np.random.default_rng(seed))
        return play(env, view, act, seed=seed, steps=20).observations

    first = observe(1)
    assert not np.array_equal(first, observe(2))
    np.testing.assert_array_equal(first, observe(1))  # whatever was played in between


def test_constant_actions_reach_the_bounds_and_the_interior():
    space = gym.spaces.Box(np.array([-2.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float64)
    drawn = np.array([constant_actions(space, np.random.default_rng(seed))(None) for seed in range(400)])
    assert all(space.contains(action) for action in drawn)
    bounded, half_bounded = drawn.T
    for bound in (-2.0, 1.0):  # a quarter each; 5 standard deviations are 0.11
        assert abs((bounded == bound).mean() - 0.25) < 0.11
    assert np.std(bounded[(bounded > -2) & (bounded < 1)]) == pytest.approx(3 / 12**0.5, rel=0.2)
    assert abs((half_bounded == 0).mean() - 0.25) < 0.11
    assert np.isfinite(half_bounded).all()


def test_constant_actions_are_held():
    space = gym.spaces.Box(-np.ones(8), np.ones(8), dtype=np.float64)
    for hold, changes in ((None, []), (4, [4, 8]), (1, [*range(1, 12)])):
        act = constant_actions(space, np.random.default_rng(0), hold)
        actions = np.array([act(None) for _ in range(12)])
        assert [step for step in range(1, 12) if (actions[step] != actions[step - 1]).any()] == changes
    space = gym.spaces.Discrete(3, start=5)  # stays as it is
    space.seed(0)
    expected = [space.sample() for _ in range(5)]
    space.seed(0)
    constant = [constant_actions(space, np.random.default_rng(seed)) for seed in range(40)]
    assert {int(act(None)) for act in constant} == {5, 6, 7}
    assert all(act(None) == act(None) for act in constant)
    assert [space.sample() for _ in range(5)] == expected


def test_a_run_plays_its_deterministic_policy_in_its_own_environment_and_chooses_no_code(
    cart_pole_run, cartpole, tmp_path
):
    env, view = cartpole
    act = run_actions(cart_pole_run, env, "VLMRM/CartPole-v1")
    first, second = (play(env, view, act, seed=0, steps=20) for _ in range(2))
    np.testing.assert_array_equal(first.actions, second.actions)
    assert all(env.action_space.contains(action) for action in first.actions)
    with pytest.raises(InputError, match=r"must be of CartPole-v1. Received one of 'VLMRM/CartPole-v1'"):
        run_actions(cart_pole_run, env, "CartPole-v1")
    other = make_external_env("CartPole-v1")
    with closing(other), pytest.raises(InputError, match=r"must have been trained in the same environment. Its obs"):
        run_actions(cart_pole_run, other)
    with pytest.raises(RunError, match="is not the folder of a run"):
        run_actions(tmp_path, env)
    (tmp_path / "config.yaml").write_text(f"env_name: {tmp_path.name}_module:Their-v0\n")
    with pytest.raises(InputError, match="names code that would be run"):
        run_actions(tmp_path, env)
