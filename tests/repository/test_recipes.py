"""The recipes of CONTRIBUTING.md are followed to the letter: a reward in one file, and a head."""

import csv
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image
from test_documents import read_blocks

import vlmrm_gym
from vlmrm_gym.tools.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]
REWARD, HEAD = (block.code for block in read_blocks((ROOT / "CONTRIBUTING.md").read_text()))
NAME, CART_POLE = "my_rewards:Darkness", "VLMRM/CartPole-v1"
DARKNESS = {"reward": NAME, "reward_kwargs": {"scale": 2.0}}
"""What the recipe's reward is at every door: 2 for a black frame, 0 for a white one."""


@pytest.fixture(autouse=True)
def package(make_module):
    """The block of the reward, as one file that can be imported."""
    return make_module("my_rewards", REWARD)


def make_envs(**options):
    return gym.make_vec(CART_POLE, num_envs=2, episode_length=6, **DARKNESS, **options)


def play(envs, flushed=()):
    """Rewards of two episodes of six steps in each of two environments, (2, 12); flushed after some of the steps."""
    envs.reset(seed=0)
    envs.action_space.seed(0)
    parts = [[], []]
    for number in range(13):  # one of these is the reset between the episodes
        infos = envs.step(envs.action_space.sample())[4]
        for late in vlmrm_gym.read_late(infos) + (vlmrm_gym.read_late(envs.flush()) if number in flushed else []):
            parts[late.env].append(late.rewards)
    envs.close()
    return np.array([np.concatenate(own) for own in parts])


def test_the_reward_of_one_file_is_taken_by_environments_workers_and_a_command(package, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(package), prepend=":")  # for the worker
    env = gym.make(CART_POLE, **DARKNESS, render_mode="rgb_array")
    env.reset(seed=0)
    env.action_space.seed(0)
    reward = env.step(env.action_space.sample())[1]
    assert reward == pytest.approx(2 * (1 - env.render().mean() / 255), abs=1e-5)
    env.close()
    np.testing.assert_allclose(play(make_envs(num_workers=1)), play(make_envs()), atol=1e-5)
    flags = ["--reward", NAME, "--reward-kwargs", "{scale: 2}"]
    Image.new("RGB", (16, 16), (0, 0, 255)).save(tmp_path / "blue.png")
    main(["score", str(tmp_path / "blue.png"), *flags, "--no-video", "--out", str(tmp_path / "scores")])
    with (tmp_path / "scores" / "rewards.csv").open() as file:
        assert float(list(csv.reader(file))[1][-1]) == pytest.approx(2 * 2 / 3)


def test_the_head_pays_parts_of_an_episode_what_it_pays_the_whole():
    namespace = {}
    exec(HEAD, namespace)
    paid = []
    for flushed in ((), (0, 3, 4, 9)):
        envs = make_envs(return_features=True)
        envs.head.replace(namespace["BestSoFar"]())
        paid.append(play(envs, flushed))
    np.testing.assert_allclose(paid[1], paid[0], atol=1e-6)
    of_single_states = play(make_envs()) / 2
    best = np.maximum.accumulate(of_single_states.reshape(2, 2, 6), axis=2)
    np.testing.assert_allclose(paid[0], best.reshape(2, 12), atol=1e-5)
    assert (best.reshape(2, 12) != of_single_states).any()


def test_every_command_is_a_file_and_a_line():
    files = {path.stem for path in (ROOT / "vlmrm_gym" / "tools" / "cli").glob("[a-z]*.py")}
    assert files - {"settings"} == set(COMMANDS)
