"""The search for cheats, with rewards whose holes are known: frames of a real scene, and numbers of the humanoid."""

import copy
from contextlib import closing
from operator import itemgetter

import mujoco
import numpy as np
import pytest

from vlmrm_gym.audit.cheats import find_cheats, first_states
from vlmrm_gym.audit.measure import median_excess
from vlmrm_gym.audit.prompts import Column
from vlmrm_gym.audit.reach import reach
from vlmrm_gym.audit.samples import collect
from vlmrm_gym.audit.scene import Scene
from vlmrm_gym.audit.search import search
from vlmrm_gym.envs import CartPole, Humanoid
from vlmrm_gym.envs.cartpole import CartPoleStates
from vlmrm_gym.envs.humanoid_body import Body, plain_model
from vlmrm_gym.envs.humanoid_states import HumanoidStates
from vlmrm_gym.envs.humanoid_success import SUCCESS_CRITERIA, soft_success
from vlmrm_gym.envs.mujoco_states import MuJoCoStates
from vlmrm_gym.envs.states import fails_clearly
from vlmrm_gym.registration import find_task, make_base_env
from vlmrm_gym.rewards.views import CombineViews
from vlmrm_gym.rollouts.play import play, random_actions

POLE = np.array([202, 152, 101])
"""The colour of the pole."""
HONEST, WITH_HOLE = (Column(itemgetter((slice(None), 0, number))) for number in range(2))
"""Each takes one feature for the reward."""


class HoleEncoder:
    """Two features of cart-pole's frames, which see the colour of the pole.

    The first is the height of the pole's end. The second is the same, but twice as much is paid for a pole in a small
    part of the picture that it reaches when it hangs down on the right: a hole.
    """

    batch_size = microbatch_size = 64
    head = None

    @staticmethod
    def render_size(height, width):
        return height // 4, width // 4

    def encode(self, frames):
        pole = (np.abs(frames.astype(int) - POLE) < 30).all(axis=3)
        rows = pole.any(axis=2)
        high = np.where(rows.any(axis=1), 1 - rows.argmax(axis=1) / 100, 0.0)
        hole = pole[:, 84:90, 125:132].sum(axis=(1, 2)) / 10
        return np.stack([high, high + 2 * hole], axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def poles():
    """A scene of cart-pole, its task and the states that a check scores."""
    env, task = CartPole("rgb_array"), CartPoleStates()
    with closing(env), Scene(env, HoleEncoder()) as scene:
        act = random_actions(env.action_space, np.random.default_rng(0))
        rollout = play(env, scene.view, act, seed=0, steps=30, behaviour="random")
        success = task.succeeds(rollout.states.rows)
        yield scene, task, collect(scene, task, [rollout], rollout.states, success, seed=0)


def find(poles, column, **options):
    scene, task, samples = poles
    return find_cheats(scene, task, column, samples, **{"effort": 1, "seed": 0} | options)


def test_it_finds_a_hole_in_a_reward_of_frames(poles):
    scene, task, samples = poles
    cheats, states = find(poles, WITH_HOLE)
    assert median_excess(cheats) > 0.5
    assert (
        WITH_HOLE(samples.around.features)[fails_clearly(task, samples.around.states.rows)].max()
        < cheats.cheats[0].reward
    )
    position, angle = states[0]
    tip = 300 + 125 * position + 125 * np.sin(angle)  # the column of the pole's end in the environment's own frame
    assert tip > 480  # the hole is at columns 500 to 528
    assert np.cos(angle) < 0  # it hangs down
    for number, cheat in enumerate(cheats.cheats):
        assert cheat.reward == pytest.approx(float(WITH_HOLE(scene.features(states[number : number + 1]))[0]))
        assert cheat.frames.shape == (1, 400, 600, 3)
        np.testing.assert_array_equal(cheat.frames, scene.draw(states[number : number + 1])[0])


def test_it_finds_none_in_an_honest_reward(poles):
    cheats, _ = find(poles, HONEST)
    assert cheats.cheats[0].reward < np.median(cheats.true_rewards)
    assert cheats.cheats[0].reward <= cheats.near_miss  # near misses get more


def test_what_it_shows_are_failures_with_the_conditions_that_they_fail(poles):
    _, task, _ = poles
    for column in (HONEST, WITH_HOLE):
        cheats, states = find(poles, column)
        assert cheats.judged
        assert fails_clearly(task, states).all()
        for cheat, angle in zip(cheats.cheats, np.rad2deg(np.abs(states[:, 1])), strict=True):
            assert cheat.failed["pole upright"] == pytest.approx((angle - 12) / 20)
        rewards = [cheat.reward for cheat in cheats.cheats]
        assert rewards == sorted(rewards, reverse=True)


def test_the_seed_decides_what_is_found(poles):
    first, again, other = (find(poles, WITH_HOLE, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first[1], again[1])
    assert not np.array_equal(first[1], other[1])
    assert first[0].scored == again[0].scored


def test_more_effort_scores_more_states(poles):
    scored = [find(poles, HONEST, effort=effort)[0].scored for effort in (1, 2)]
    assert scored[1] > 1.5 * scored[0]
    assert scored[0] <= 1_700


def test_no_two_searches_draw_the_same_random_numbers(poles, monkeypatch):
    scene, task, samples = poles
    first_numbers, default_rng = [], np.random.default_rng

    def record(seed):
        rng = default_rng(seed)
        first_numbers.append(copy.deepcopy(rng).random())
        return rng

    pytest.importorskip("cma")  # importing it makes generators of its own
    monkeypatch.setattr(np.random, "default_rng", record)
    find(poles, HONEST)
    score, failing = (lambda rows: rows[:, 0]), (lambda rows: rows[:, 0] > 0)
    search(score, failing, np.ones((4, 1)), lambda rows, offsets: rows + offsets, dimensions=1, evaluations=20)
    target = samples.visited.states.rows[5]
    for number in range(2):
        score, failing = (lambda rows: np.zeros(len(rows))), (lambda rows: ~task.succeeds(rows))
        options = {"steps": 10, "rollouts": 5, "seed": 0, "number": number}
        reach(scene.env, scene.view, target, np.ones(2), score, failing, **options)
    assert len(first_numbers) == 5  # of them two of the search for cheats, and one of a search with the seed itself
    assert len(set(first_numbers)) == 5


def test_without_a_judge_it_finds_what_is_paid_most():
    env = Humanoid("rgb_array", textured=False)

    class Bright(HoleEncoder):
        def encode(self, frames):
            return frames.mean(axis=(1, 2, 3), dtype=np.float32)[:, None] / 255

    with closing(env), Scene(env, Bright()) as scene:
        act = random_actions(env.action_space, np.random.default_rng(0))
        rollout = play(env, scene.view, act, seed=0, steps=5, behaviour="random")
        task = MuJoCoStates(env.model, rollout.states.rows)
        samples = collect(scene, task, [rollout], rollout.states, None, seed=0)
        column = HONEST
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("vlmrm_gym.audit.cheats.EVALUATIONS", 200)
            cheats, states = find_cheats(scene, task, column, samples, effort=1, seed=0)
        assert not cheats.judged
        assert cheats.near_miss is None
        assert cheats.cheats[0].reward >= column(samples.around.features).max()
        assert all(cheat.failed == {} for cheat in cheats.cheats)
        assert len(states) == len(cheats.cheats) <= 5


def depth(model, states):
    """How deep the parts of states are inside one another or inside the floor, in metres: float64 (N,)."""
    data, depths = mujoco.MjData(model), []
    for state in states:
        data.qpos[:] = state
        mujoco.mj_forward(model, data)
        depths.append(max([0.0, *(-contact.dist for contact in data.contact)]))
    return np.array(depths)


def lies(states):
    """How far the humanoid lies, from 0 to 1."""
    return np.clip(1 - Body(states).up(), 0, 1)


def of_standing(states):
    """An honest reward: 1 for all that stand, less for what fails conditions of that."""
    return soft_success(SUCCESS_CRITERIA["stand"](Body(states)).values())


def with_a_twist(states):
    """The same, and 2 for lying with the waist turned far: a hole that no pose of the library is in."""
    turn = states[:, plain_model().joint("abdomen_z").qposadr[0]]
    return of_standing(states) + 2 * lies(states) * np.exp(-np.abs(turn - 0.6) / 0.2)


@pytest.mark.parametrize(("score", "has_hole"), [(of_standing, False), (with_a_twist, True)])
def test_a_search_among_the_humanoids_poses_finds_a_hole_where_there_is_one(score, has_hole, rng):
    task = HumanoidStates("stand")
    population = task.sample(64, rng)
    failing = lambda states: fails_clearly(task, states)  # noqa: E731
    found = search(score, failing, population, task.perturb, dimensions=task.dimensions, evaluations=1_100)
    assert failing(found.states).all()
    if has_hole:
        assert score(population)[failing(population)].max() < 1.6  # the library alone would not have shown it
        assert found.scores[0] > 1.8
    else:
        assert found.scores[0] < 0.9  # 0.5 units of the margin of one condition of three are missing


def test_the_views_that_a_column_combines():
    """The head sees each view for itself; a randomly drawn view counts with its expectation."""
    features = np.array([[[1.0, 5.0], [3.0, 4.0]]], dtype=np.float32)
    assert HONEST(features).tolist() == [1]
    assert WITH_HOLE(features).tolist() == [4]
    assert HONEST(features[:, 1:]).tolist() == [3]
    for how, expected in (("min", 1), ("mean", 2), ("random", 2), (lambda rewards: rewards[:, 1], 3)):
        assert Column(HONEST.head, CombineViews(how, 2))(features).tolist() == [expected]


@pytest.mark.parametrize(
    ("task_id", "camera"),
    [
        ("CartPole-v1", None),
        ("MountainCarContinuous-v0", None),
        ("Humanoid-stand-v0", None),
        ("Humanoid-stand-v0", "front-side"),
    ],
)
def test_a_scene_draws_what_a_view_of_the_environment_draws(task_id, camera):
    """To the pixel, at the environment's own size, from every camera: although the queue draws for the model."""
    env = make_base_env(find_task(f"VLMRM/{task_id}"), 5)
    with closing(env), Scene(env, HoleEncoder(), camera) as scene:
        act = random_actions(env.action_space, np.random.default_rng(0))
        states = play(env, scene.view, act, seed=0, steps=3, behaviour="random").states
        drawn = np.concatenate(list(scene.draw(states).swapaxes(0, 1)), axis=2)
        np.testing.assert_array_equal(drawn, scene.view.draw(states.rows, states.changes))


def test_a_search_begins_with_possible_states():
    """Random poses may have parts inside one another, which a camera may not show."""
    task, model = HumanoidStates("arms-crossed"), plain_model()
    env = Humanoid("rgb_array", task="arms-crossed", textured=False)
    with closing(env), Scene(env, HoleEncoder()) as scene:
        act = random_actions(env.action_space, np.random.default_rng(0))
        rollout = play(env, scene.view, act, seed=0, steps=2, behaviour="random")
        samples = collect(scene, task, [rollout], rollout.states, None, seed=0)
    assert depth(model, samples.around.states.rows).max() > 0.05
    assert depth(model, first_states(task, samples, HONEST, 0)).max() < 0.05
