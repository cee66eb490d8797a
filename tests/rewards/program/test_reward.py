"""Programs as rewards: what they may answer, sub-tasks, and that how they are scored changes no reward."""

import time
from contextlib import closing, suppress
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from backends import children
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

import vlmrm_gym
from vlmrm_gym import Program
from vlmrm_gym.rewards.program.execution import execute
from vlmrm_gym.rewards.program.spec import ProgramError

CARTPOLE = "VLMRM/CartPole-v1"
STEPS, LENGTH, NUM_ENVS = 50, 12, 3
SUBTASKS = """
class _Counted:
    def reset(self):
        self.frames = []

class Waited(_Counted):
    def __call__(self, frame):
        self.frames.append(frame)
        return len(self.frames) == 4

class Moved(_Counted):
    def __call__(self, frame):
        self.frames.append(frame)
        return min(0.75, float(abs(frame.astype(float) - self.frames[0]).mean() / 20))
"""
SMALL = Program(source=SUBTASKS, size=(40, 60))
BRIGHTNESS = "def reward(frame):\n    return frame.mean() / 255"
ANGLE = "import math\ndef reward(state):\n    return math.cos(state[1])"


def subtask_rewards(frames):
    """What `SUBTASKS` pays for an episode, by definition."""
    rewards = [0.0] * min(3, len(frames))  # not waited yet
    for t in range(3, len(frames)):  # the frame that completed the first sub-task is the first that the second one sees
        moved = abs(frames[t].astype(float) - frames[3]).mean() / 20
        rewards.append((1 + min(0.75, moved)) / 2)
    return np.array(rewards, dtype=np.float32)


def play(**options):
    """Rewards of each environment in order, float (NUM_ENVS, STEPS)."""
    options = {"reward": SMALL, "episode_length": LENGTH, **options}
    envs = gym.make_vec(CARTPOLE, num_envs=NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP, **options)
    found = [[] for _ in range(NUM_ENVS)]
    with closing(envs):
        envs.reset(seed=3)
        rng = np.random.default_rng(0)
        for step in range(STEPS + 1):
            if step < STEPS:
                _, rewards, _, _, infos = envs.step(rng.integers(0, 2, NUM_ENVS))
            elif envs.defers_rewards:
                infos = envs.flush()
            for i in range(NUM_ENVS):
                if envs.defers_rewards and infos["_vlm_rewards"][i]:
                    found[i].extend(infos["vlm_rewards"][i])
                elif not envs.defers_rewards and step < STEPS:
                    found[i].append(rewards[i])
    return np.array(found)


@pytest.fixture(scope="module")
def stepped():
    """The rewards of episodes, scored step by step."""
    return play(scoring="step")


def test_rewards_of_sub_tasks_are_those_of_the_definition(stepped):
    env = gym.make(CARTPOLE, reward=Program(source=SUBTASKS), episode_length=LENGTH)
    with closing(env):
        for _ in range(2):
            env.reset(seed=5)
            frames, rewards, ended = [], [], False
            while not ended:
                _, reward, terminated, truncated, _ = env.step(1)
                frames.append(env.render())
                rewards.append(reward)
                ended = terminated or truncated
            np.testing.assert_allclose(rewards, subtask_rewards(frames), rtol=1e-6)
            assert rewards[-1] > 0.5
    assert (stepped >= 0.5).mean() > 0.5
    assert len(np.unique(stepped)) > 20


WAYS = [{"overlap": True}, {"num_workers": 2}, {"reward": replace(SMALL, isolate=False)}]
WAYS += [{"max_pending_bytes": 900, "num_workers": 2, "overlap": True}]  # cut into chunks of few states


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_how_sub_tasks_are_scored_changes_no_reward(options, stepped):
    np.testing.assert_array_equal(play(**options), stepped)


@settings(deadline=None, max_examples=40)
@given(cuts=st.lists(st.integers(1, 5), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_an_episode_may_be_cut_anywhere(cuts, seed):
    frames = np.random.default_rng(seed).integers(0, 255, (sum(cuts), 3, 3, 3), dtype=np.uint8)
    program, memory, rewards, start = execute(SUBTASKS, "x.py", isolate=False), None, [], 0
    for count in cuts:
        values, memory = program.run(frames[start : start + count], memory)
        rewards.extend(values)
        start += count
    np.testing.assert_allclose(rewards, subtask_rewards(frames), rtol=1e-6)


def test_one_execution_continues_what_another_began_also_after_its_process_has_ended():
    frames = np.random.default_rng(0).integers(0, 255, (9, 4, 6, 3), dtype=np.uint8)
    programs = [execute(SUBTASKS, f"{i}.py") for i in range(2)]
    memory, rewards = None, []
    for t in range(9):
        own, memory = programs[t % 2].run(frames[t : t + 1], memory)
        rewards.extend(own)
        if t > 5:
            programs[t % 2].close()
    np.testing.assert_allclose(rewards, subtask_rewards(frames), rtol=1e-6)
    for program in programs:
        program.close()


def test_several_views_are_several_episodes_and_their_rewards_are_combined():
    def rewards(**options):
        reward = Program(source=SUBTASKS, size=(60, 60))
        env = gym.make("VLMRM/Humanoid-kneel-v0", textured=False, reward=reward, episode_length=8, **options)
        with closing(env):
            env.reset(seed=0)
            return [env.step(env.action_space.high)[1] for _ in range(8)]

    views = {"azimuth": 180}, {"azimuth": 90}
    each = np.array([rewards(camera=view) for view in views])
    assert (each[0] != each[1]).any()
    np.testing.assert_array_equal(rewards(camera=list(views)), each.min(axis=0))


def test_a_program_may_see_the_states():
    env = gym.make(CARTPOLE, reward=Program(source=ANGLE, inputs="states"))
    with closing(env):
        env.reset(seed=1)
        for _ in range(5):
            observation, reward, *_ = env.step(1)
            assert reward == pytest.approx(np.cos(observation[2]), abs=1e-5)
    counted = "class Waited:\n    def reset(self): self.n = 0\n    def __call__(self, state):\n        self.n += 1\n"
    counted += "        assert state.shape == (2,) and state.dtype == 'float64'\n        return self.n / 10"
    rewards = play(reward=Program(source=counted, inputs="states"), num_workers=1)
    np.testing.assert_allclose(rewards[0, :LENGTH], np.minimum(np.arange(1, LENGTH + 1) / 10, 1), rtol=1e-6)
    with pytest.raises(ValueError, match="`combine_views` is not for a reward that sees no view"):
        gym.make(CARTPOLE, reward=Program(source=ANGLE, inputs="states"), combine_views="min")
    env = gym.make("FrozenLake-v1", render_mode="rgb_array")  # its frames are stored
    with closing(vlmrm_gym.VLMReward(env, reward=Program(source=ANGLE, inputs="states"))) as env:
        env.reset(seed=0)
        with pytest.raises(ValueError, match='`inputs="states"` needs states from which frames can be drawn'):
            env.step(0)


def test_a_program_sees_frames_of_the_size_that_it_asks_for():
    source = "def reward(frame):\n    height, width, _ = frame.shape\n    return height + width / 1_000"
    assert np.unique(play(reward=Program(source=source))) == np.float32(400.6)
    assert np.unique(play(reward=Program(source=source, size=(60, 90)), num_workers=1)) == np.float32(60.09)


@pytest.mark.parametrize("source", [BRIGHTNESS, SUBTASKS])
def test_the_features_of_a_program_are_its_rewards_and_are_not_interpolated(source):
    make = {"num_envs": 1, "reward": Program(source=source), "episode_length": 5}
    with closing(gym.make_vec(CARTPOLE, return_features=True, **make)) as envs:
        envs.reset(seed=0)
        infos = [envs.step(np.zeros(1, dtype=int))[4] for _ in range(5)][-1]
        np.testing.assert_array_equal(infos["vlm_features"][0], infos["vlm_rewards"][0][:, None, None])
    with pytest.raises(ValueError, match="`score_every` is not for this reward: it says that it cannot"):
        gym.make_vec(CARTPOLE, score_every=4, **make)


FAILING = """
class Task:
    def reset(self): self.seen = 0
    def __call__(self, frame):
        self.seen += 1
        if self.seen == 7:
            raise ArithmeticError("seven")
        return self.seen / 100
"""


def test_the_error_of_a_program_names_the_step_and_leaves_no_process():
    before = children()
    with pytest.raises(ProgramError, match=r'Line 7: ArithmeticError: seven." The frame is of environment \d, step 6.'):
        play(reward=Program(source=FAILING), max_pending_bytes=900, num_workers=2)
    until = time.monotonic() + 10
    while children() != before:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_after_the_error_of_a_program_the_call_is_repeated():
    """The states are kept: a program that fails by chance, or for lack of time, loses no reward."""
    source = FAILING.replace("raise Arithmetic", "import os; os.kill(0, 9); raise Arithmetic")
    options = {"reward": Program(source=source), "episode_length": 20, "max_pending_bytes": 900, "overlap": True}
    with closing(gym.make_vec(CARTPOLE, num_envs=2, **options)) as envs:
        envs.reset(seed=0)
        for _ in range(16):
            with suppress(ProgramError):
                envs.step(np.zeros(2, dtype=int))
        for _ in range(2):
            with pytest.raises(ProgramError, match="system call that is forbidden"):
                envs.flush()
