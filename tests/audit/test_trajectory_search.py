"""The search for actions that lead from an initial state to a state that a check has found."""

from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest

from vlmrm_gym.audit.trajectory_search import search_trajectories
from vlmrm_gym.capture import StateView
from vlmrm_gym.envs import CartPole, MountainCar
from vlmrm_gym.errors import InputError

EVERYTHING = lambda rows: np.ones(len(rows), dtype=bool)  # noqa: E731


def near(target):
    """A reward of 1 at a state, which halves at a distance of 0.07."""
    return lambda rows: np.exp(-10 * np.linalg.norm(rows - np.array(target), axis=1))


def search(env, target, is_failure=EVERYTHING, *, score=None, spread=None, steps=60, rollouts=60, seed=0):
    goal = np.array(target)
    with closing(env), closing(StateView(env)) as view:
        return search_trajectories(
            env,
            view,
            goal,
            np.ones(len(goal)) if spread is None else np.array(spread),
            score or near(target),
            is_failure,
            steps=steps,
            rollouts=rollouts,
            seed=seed,
        )


def mountain_car():
    return MountainCar("rgb_array")


def cart_pole():
    return CartPole("rgb_array")


@pytest.mark.parametrize("position", [-0.62, -0.4])
def test_what_continuous_actions_lead_to_is_reached(position):
    assert search(mountain_car(), [position]) > 0.95


@pytest.mark.parametrize("actions", [[0] * 20 + [1] * 10, [1] * 10 + [0] * 30])
def test_what_discrete_actions_lead_to_is_reached(actions):
    env = cart_pole()
    env.reset(seed=0)
    for action in actions:
        env.step(action)
    assert search(cart_pole(), env.state[::2].tolist(), rollouts=200) > 0.8


def test_what_no_actions_lead_to_is_not_reached():
    assert search(mountain_car(), [0.45], steps=40) < 0.01  # the flag takes two swings
    assert search(cart_pole(), [2.3, 0.0], steps=30) < 0.01  # the end of the track is too far


def test_values_that_do_not_vary_do_not_count():
    first_only = lambda rows: np.exp(-10 * np.abs(rows[:, 1] - np.deg2rad(50)))  # noqa: E731
    target = [100.0, np.deg2rad(50)]
    assert search(cart_pole(), target, score=first_only, spread=[0.0, 1.0]) > 0.5


def test_only_failing_states_are_rewarded():
    scored = []

    def score(rows):
        scored.append(rows)
        return near([-0.4])(rows)

    left = lambda rows: rows[:, 0] < -0.45  # noqa: E731
    reached = search(mountain_car(), [-0.4], left, score=score)
    assert (np.concatenate(scored) < -0.45).all()
    assert reached == pytest.approx(np.exp(-0.5), abs=0.05)  # as near to the target as failures are
    assert search(mountain_car(), [-0.4], lambda rows: np.zeros(len(rows), dtype=bool)) is None


def test_the_seed_decides():
    state = np.random.get_state()[1].copy()
    first, again, other = (search(mountain_car(), [0.45], steps=30, rollouts=15, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    np.testing.assert_array_equal(np.random.get_state()[1], state)


class OtherActions(gym.Wrapper):
    def __init__(self, env, space):
        super().__init__(env)
        self.action_space = space


@pytest.mark.parametrize(
    "space", [gym.spaces.MultiDiscrete([2, 2]), gym.spaces.Box(-np.inf, np.inf, (1,)), gym.spaces.Text(3)]
)
def test_other_actions_are_refused(space):
    with pytest.raises(InputError, match="`trajectory_search` needs actions that are a bounded Box or Discrete"):
        search(OtherActions(mountain_car(), space), [0.0])


def test_discrete_actions_may_start_anywhere():
    """The actions -1 and 0 in place of 0 and 1."""

    class Shifted(gym.ActionWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.action_space = gym.spaces.Discrete(2, start=-1)

        def action(self, action):
            assert action in self.action_space
            return action + 1

    assert search(Shifted(cart_pole()), [0.3, 0.0], steps=30, rollouts=30) is not None
