"""The states of a task that a check makes: successes are successes, and changed states are possible."""

from contextlib import closing

import gymnasium as gym
import mujoco
import numpy as np
import pytest

from vlmrm_gym.data.rollouts import play, random_actions
from vlmrm_gym.states import StateView
from vlmrm_gym.tasks.cartpole import CartPole, CartPoleStates
from vlmrm_gym.tasks.humanoid import Humanoid
from vlmrm_gym.tasks.humanoid_body import plain_model
from vlmrm_gym.tasks.humanoid_poses import HumanoidStates, pose
from vlmrm_gym.tasks.humanoid_success import SUCCESS_CRITERIA
from vlmrm_gym.tasks.known_states import fails_clearly
from vlmrm_gym.tasks.mountain_car import MountainCar, MountainCarStates
from vlmrm_gym.tasks.mujoco_states import MuJoCoStates

MUJOCO_IDS = ["Ant-v5", "InvertedPendulum-v5", "Reacher-v5"]
DEPTH = 0.05
"""How deep parts of a possible state are inside one another or inside the floor, in metres: contacts are soft."""
SLACK = 0.1
"""How far a joint of a possible state is beyond its limits, in radians or metres: limits are soft, too."""


ALL = [CartPoleStates(), MountainCarStates(), *map(HumanoidStates, SUCCESS_CRITERIA)]


def mutate(task, states, rng):
    """Change every state, by a little or by much, in some of its dimensions or in all."""
    shape = (len(states), task.dimensions)
    chosen = rng.random(shape) < rng.choice([0.1, 0.3, 1.0], (len(states), 1))
    return task.perturb(states, chosen * rng.choice([0.25, 2.0, 5.0], (len(states), 1)) * rng.normal(size=shape))


def depth(model, states):
    """How deep the parts of states are inside one another or inside the floor, in metres: float64 (N,)."""
    data, depths = mujoco.MjData(model), []
    for state in states:
        data.qpos[:] = state[: model.nq]
        mujoco.mj_forward(model, data)
        depths.append(max([0.0, *(-contact.dist for contact in data.contact)]))
    return np.array(depths)


def beyond_limits(model, states):
    """How far the joint that is furthest beyond its limits is beyond them, or minus its distance: float64 (N,)."""
    beyond = [np.full(len(states), -np.inf)]
    for joint in range(model.njnt):
        one_number = model.jnt_type[joint] in (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
        if model.jnt_limited[joint] and one_number:
            low, high = model.jnt_range[joint]
            values = states[:, model.jnt_qposadr[joint]]
            beyond += [low - values, values - high]
    return np.max(beyond, axis=0)


@pytest.mark.parametrize("task", ALL, ids=["cart-pole", "mountain car", *SUCCESS_CRITERIA])
def test_goals_succeed_samples_have_both_classes_and_states_without_negative_margins_succeed(task, rng):
    goals = task.goals(20, rng)
    assert len(goals) == 20
    assert task.succeeds(goals).all()
    assert not fails_clearly(task, goals).any()
    assert len(np.unique(goals, axis=0)) == 20
    states = task.sample(90, rng)
    assert states.shape == (90, goals.shape[1])
    assert np.isfinite(states).all()
    success, margins = task.succeeds(states), task.margins(states)
    assert 0.2 < success.mean() < 0.6
    assert fails_clearly(task, states).mean() > 0.3
    assert (len(task.sample(2, rng)), len(task.goals(1, rng))) == (2, 1)
    np.testing.assert_array_equal(np.all([own >= 0 for own in margins.values()], axis=0), success)
    assert {own.shape for own in margins.values()} == {(90,)}


def test_the_seed_decides():
    task, drawn = HumanoidStates("arms-crossed"), []
    for seed in (1, 1, 2):
        rng = np.random.default_rng(seed)
        states = task.sample(12, rng)
        drawn.append(np.concatenate([states, task.goals(4, rng), mutate(task, states, rng)]).tobytes())
    assert drawn[0] == drawn[1] != drawn[2]


def test_classic_control_at_its_limits():
    """Positions, and angles in degrees."""
    pole, car = CartPoleStates(), MountainCarStates()
    for task, state, success, wrong in (
        (pole, (-2.3, -11.9), True, False),
        (pole, (0, 12.1), False, False),  # the limit is 12 degrees, a near miss at most 10 degrees beyond
        (pole, (0, 21.9), False, False),
        (pole, (0, -22.1), False, True),
        (pole, (2.4, 0), False, False),  # the cart cannot be further away
        (car, (0.45,), True, False),
        (car, (0.449,), False, False),
        (car, (0.36,), False, False),
        (car, (0.34,), False, True),
    ):
        states = np.array([[state[0], *np.deg2rad(state[1:])]])
        assert (task.succeeds(states)[0], fails_clearly(task, states)[0]) == (success, wrong), state


def played(env, act, steps):
    """The captured states of a rollout, float64 (T, S), and the success that the environment said, bool (T,)."""
    with closing(env), closing(StateView(env)) as view:
        rollout = play(env, view, act, seed=0, steps=steps)
    return rollout.states.rows, rollout.success


def swing(observation):
    return np.array([1.0 if observation[1] >= 0 else -1.0], dtype=np.float32)


def test_classic_control_succeeds_as_its_environment_says(rng):
    for make_env, task, act in ((CartPole, CartPoleStates(), None), (MountainCar, MountainCarStates(), swing)):
        env = make_env("rgb_array")
        states, success = played(env, act or random_actions(env.action_space, rng), 150)
        np.testing.assert_array_equal(task.succeeds(states), success)
        assert 10 < success.sum() < 140


@pytest.mark.parametrize("name", ["kneel", "splits", "one-leg"])
def test_the_humanoid_succeeds_as_its_environment_says_and_changed_states_are_possible(name, rng):
    task, env = HumanoidStates(name), Humanoid("rgb_array", task=name, textured=False)
    states = np.concatenate([task.goals(6, rng), task.sample(18, rng)])
    said, captured = [], []
    with closing(env), closing(StateView(env)) as view:
        for state in states:
            env.reset(seed=0)
            view.reset()
            env.set_state(state, np.zeros(env.model.nv))
            said.append(env.step(np.zeros(17))[4]["success"])
            captured.append(view.capture()[0])
    np.testing.assert_array_equal(task.succeeds(np.stack(captured)), said)
    assert 3 < sum(said) < 21
    changed = change_and_check(task, plain_model(), rng)
    np.testing.assert_allclose(np.linalg.norm(changed[:, 3:7], axis=1), 1, atol=1e-9)
    assert changed[:, 2].min() > 0
    assert changed[:, 2].max() < 1.7  # as high as a humanoid that stands on its toes, or on its hands


def change_and_check(task, model, rng):
    """Change states as a search does, whose states descend from changed ones; check that they are possible."""
    states = task.sample(60, rng)
    before, changed = states.copy(), states
    for _ in range(4):
        changed = mutate(task, changed, rng)
    np.testing.assert_array_equal(states, before)
    assert changed.shape == states.shape
    assert np.isfinite(changed).all()
    moved = np.abs(changed - states).max(axis=1) > 1e-3
    assert moved.mean() > 0.9
    assert depth(model, changed[moved]).max() < DEPTH + 0.01
    assert beyond_limits(model, changed[moved]).max() < SLACK + 0.01
    return changed


def test_changed_classic_control_is_possible(rng):
    pole, car = CartPoleStates(), MountainCarStates()
    poles = pole.perturb(pole.sample(200, rng), rng.normal(0, 20, (200, 2)))
    assert np.abs(poles).max(axis=0) == pytest.approx([2.4, np.pi], abs=0.2)
    assert (np.abs(poles) <= [2.4, np.pi]).all()
    cars = car.perturb(car.sample(200, rng), rng.normal(0, 20, (200, 1)))
    assert (cars.min(), cars.max()) == (-1.2, 0.6)


@pytest.fixture(scope="module", params=MUJOCO_IDS)
def seen(request):
    """The model of an environment of another package, and 60 states of rollouts."""
    env = gym.make(request.param, render_mode="rgb_array")
    rows = []
    with closing(env), closing(StateView(env)) as view:
        for seed in range(6):
            act = random_actions(env.action_space, np.random.default_rng(seed))
            rows.append(play(env, view, act, seed=seed, steps=10).states.rows)
        return env.unwrapped.model, np.concatenate(rows)


def test_any_mujoco_environment_has_states_of_rollouts_and_the_users_success_function(seen, rng):
    model, rows = seen
    limit = np.median(rows[:, 0])
    task = MuJoCoStates(model, rows, lambda states: states[:, 0] > limit)
    states, goals = task.sample(50, rng), task.goals(10, rng)
    known = {row.tobytes() for row in rows}
    assert {row.tobytes() for row in (*states, *goals)} <= known
    assert 0 < task.succeeds(states).sum() < 50
    assert (goals[:, 0] > limit).all()
    np.testing.assert_array_equal(fails_clearly(task, states), states[:, 0] <= limit)  # no conditions: every failure
    assert (task.margins(states), task.paths()) == ({}, [])
    change_and_check(task, model, rng)
    unknown, never = MuJoCoStates(model, rows), MuJoCoStates(model, rows, lambda states: np.zeros(len(states), bool))
    assert not unknown.has_success_fn
    assert unknown.goals(5, rng).shape == never.goals(5, rng).shape == (0, rows.shape[1])


def test_the_humanoid_without_a_task_has_poses_and_no_goal(rng):
    task = HumanoidStates(None)
    assert not task.has_success_fn
    assert task.example_goal() is task.on_the_way(np.zeros(1)) is task.grade(task.sample(3, rng)) is None
    assert task.sample(10, rng).shape == (10, 24)
    assert task.goals(10, rng).shape == (0, 24)
    assert task.margins(pose()[None]) == {}
    assert {path.line for path in task.paths()} == set(SUCCESS_CRITERIA)


def test_the_model_of_the_environment_is_not_changed(rng):
    env = gym.make("Ant-v5", render_mode="rgb_array")
    with closing(env):
        env.reset(seed=0)
        model, state = env.unwrapped.model, env.unwrapped.data.qpos.copy()
        mutate(MuJoCoStates(model, state[None]), np.repeat(state[None], 5, axis=0), rng)
        np.testing.assert_array_equal(env.unwrapped.data.qpos, state)
        np.testing.assert_array_equal(model.qpos0, gym.make("Ant-v5").unwrapped.model.qpos0)


def test_the_humanoids_path_leads_from_standing_to_the_goal():
    for name in SUCCESS_CRITERIA:
        task = HumanoidStates(name)
        (path,) = (path for path in task.paths() if path.line is None)
        assert task.succeeds(path.states)[[0, -1]].tolist() == [name == "stand", True]
        assert (path.positions[0], path.positions[-1]) == (0, 100)
        np.testing.assert_allclose(path.states[0, 7:], pose("stand", "loose")[7:], atol=1e-9)
        assert np.abs(np.diff(path.states, axis=0)).max() < 0.2
        assert depth(plain_model(), path.states).max() < 0.1


def test_the_paths_of_classic_control_cross_the_goal():
    angles, positions = CartPoleStates().paths()
    success = CartPoleStates().succeeds(angles.states)
    assert angles.positions[success].tolist() == [-10, -5, 0, 5, 10]
    assert CartPoleStates().succeeds(positions.states).tolist() == [False] + [True] * 47 + [False]
    (path,) = MountainCarStates().paths()
    np.testing.assert_array_equal(MountainCarStates().succeeds(path.states), path.positions >= 0.45)
    for one in (angles, positions, path):
        assert (np.diff(one.positions) > 0).all()
        assert len(one.states) == len(one.positions)
