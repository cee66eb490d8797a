"""The example programs say of drawn states what the tasks' own criteria say, isolated and in this process."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from scipy.stats import spearmanr

import vlmrm_gym
from vlmrm_gym.data.metrics import auc
from vlmrm_gym.envs.make import find_task, make_base_env
from vlmrm_gym.rewards.program.execution import execute
from vlmrm_gym.states import StateView
from vlmrm_gym.tasks.humanoid_poses import pose

PROGRAMS = Path(__file__).parents[3] / "examples" / "programs"
CLASSIC = {"cartpole": "VLMRM/CartPole-v1", "mountain_car": "VLMRM/MountainCarContinuous-v0"}
HUMANOID = {"kneel": "VLMRM/Humanoid-kneel-v0", "lotus": "VLMRM/Humanoid-lotus-v0"}
FLOORS = {"kneel": 0.97, "lotus": 0.99}
"""AUC against success: the criteria need contacts that a small frame does not show."""
AZIMUTHS = {"kneel": 90, "lotus": 180}
"""Of the cameras of the humanoid's programs, as their docstrings say."""


def draw(id, states, size, camera=None):
    """Frames of states, uint8 (N, H, W, 3); `size` None: as large as the environment draws them."""
    task = find_task(id)
    env = make_base_env(task, task.episode_length)
    renderer = StateView(env, camera).make_renderer(lambda height, width: size or (height, width))
    frames = renderer.render(states)
    renderer.close()
    env.close()
    return frames.reshape(len(states), *frames.shape[-3:])


def rewards(name, frames, isolate=False):
    path = PROGRAMS / f"{name}.py"
    program = execute(path.read_text(), str(path), isolate=isolate)
    try:
        return program.run(frames)[0]
    finally:
        program.close()


@pytest.mark.parametrize("size", [None, (96, 96)])
@pytest.mark.parametrize("name", CLASSIC)
def test_one_is_success_and_the_rewards_rise_towards_it(name, size):
    states = find_task(CLASSIC[name]).make_states()
    sample = states.sample(150, np.random.default_rng(5))
    found = rewards(name, draw(CLASSIC[name], sample, size))
    success = states.succeeds(sample)
    assert found.min() >= 0
    assert found.max() >= 1
    assert ((found >= 1) == success).mean() >= 0.97
    assert spearmanr(found[~success], states.grade(sample)[~success])[0] >= 0.9


def test_a_pole_that_leans_out_of_the_frame_has_fallen_and_a_cart_at_an_end_has_failed():
    """Only a stump of such a pole is visible, which looks upright."""
    leaning = np.array([[2.37, 0.7], [2.37, 1.0], [-2.37, -0.7], [2.4, 0.0], [-2.4, 0.0]])
    assert rewards("cartpole", draw(CLASSIC["cartpole"], leaning, (96, 96))).max() < 1


@pytest.mark.parametrize("name", HUMANOID)
def test_a_humanoid_is_paid_in_full_at_the_goal_only(name):
    states = find_task(HUMANOID[name]).make_states()
    sample = states.sample(150, np.random.default_rng(5))  # a third of them successes, a third close failures
    way = states.on_the_way(np.array([0.0, 0.5, 1.0]))
    lying = np.stack([pose(legs) for legs in ("lie on back", "lie on front")])
    drawn = np.concatenate([sample, way, lying])
    camera = {"trackbodyid": "torso", "distance": 2.3, "elevation": -20, "azimuth": AZIMUTHS[name]}
    found = rewards(name, draw(HUMANOID[name], drawn, (128, 128), camera))
    success = states.succeeds(sample)
    assert ((found[:150] >= 1) == success).mean() >= 0.97
    assert auc(found[:150], success) >= FLOORS[name]
    standing, half, goal = found[150:153]
    assert standing < half < goal == found.max() == 1
    assert found[153:].max() < 0.4


@pytest.mark.parametrize("name", ["cartpole", "kneel"])
def test_an_isolated_program_answers_as_in_this_process(name):
    env = gym.make({**CLASSIC, **HUMANOID}[name], reward=vlmrm_gym.Program(path=str(PROGRAMS / f"{name}.py")))
    env.reset(seed=0)
    frames = np.stack([env.render(), np.zeros_like(env.render())])  # a frame that shows nothing, too
    env.close()
    # BLAS may choose another kernel in a process without this one's environment variables.
    np.testing.assert_allclose(rewards(name, frames, isolate=True), rewards(name, frames), rtol=1e-12)
