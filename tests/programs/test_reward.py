"""Programs as rewards: what they may answer, sub-tasks, and that how they are scored changes no reward."""

import json
import os
import pickle
import signal
import time
import warnings
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from backends import children
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3 import DQN

import vlmrm_gym
from vlmrm_gym import Program, sb3
from vlmrm_gym.programs.execution import execute
from vlmrm_gym.programs.sandbox import is_supported
from vlmrm_gym.rewards import from_mapping, to_mapping
from vlmrm_gym.rewards.program import ProgramError
from vlmrm_gym.scoring.queue import ScoringQueue

pytestmark = pytest.mark.skipif(not is_supported(), reason="isolation needs Linux on x86_64 or aarch64")

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
BRIGHTNESS = "def reward(frame):\n    return frame.mean() / 255"
ANGLE = "import math\ndef reward(state):\n    return math.cos(state[1])"


def subtask_rewards(frames):
    """What `SUBTASKS` pays for an episode, by definition."""
    rewards = []
    for t in range(len(frames)):
        if t < 3:
            rewards.append(0.0)  # not waited yet
        else:  # the frame that completed the first sub-task is the first that the second one sees
            moved = abs(frames[t].astype(float) - frames[3]).mean() / 20
            rewards.append((1 + min(0.75, moved)) / 2)
    return np.array(rewards, dtype=np.float32)


def play(**options):
    """Rewards of each environment in order, float (NUM_ENVS, STEPS); and, with `scoring="step"`, the frames."""
    options = {"reward": Program(source=SUBTASKS), "episode_length": LENGTH, **options}
    envs = gym.make_vec(CARTPOLE, num_envs=NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP, **options)
    found = [[] for _ in range(NUM_ENVS)]
    with closing(envs):
        envs.reset(seed=3)
        rng = np.random.default_rng(0)
        for _ in range(STEPS):
            _, rewards, _, _, infos = envs.step(rng.integers(0, 2, NUM_ENVS))
            for i in range(NUM_ENVS):
                if not envs.defers_rewards:
                    found[i].append(rewards[i])
                elif infos["_vlm_rewards"][i]:
                    found[i].extend(infos["vlm_rewards"][i])
        if envs.defers_rewards:
            infos = envs.flush()
            for i in np.flatnonzero(infos["_vlm_rewards"]):
                found[i].extend(infos["vlm_rewards"][i])
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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"overlap": True},
        {"num_workers": 2},
        {"num_workers": 2, "overlap": True},
        {"max_pending_bytes": 900},  # cut into chunks of few states
        {"max_pending_bytes": 900, "num_workers": 2, "overlap": True},
        {"reward": Program(source=SUBTASKS, isolate=False)},
    ],
    ids=str,
)
def test_how_sub_tasks_are_scored_changes_no_reward(options, stepped):
    np.testing.assert_array_equal(play(**options), stepped)


def test_rewards_are_the_same_after_workers_were_killed(stepped, monkeypatch):
    """In the middle of episodes that are cut: what was remembered before the cut is there again."""
    killed, cut = [], ScoringQueue._cut_batch

    def kill_sometimes(queue):
        parts = cut(queue)
        if len(killed) < 2 and parts[0].memory is not None:
            killed.append(sorted(children())[len(killed) % 2])
            os.kill(killed[-1], signal.SIGKILL)
        return parts

    monkeypatch.setattr(ScoringQueue, "_cut_batch", kill_sometimes)
    np.testing.assert_array_equal(play(num_workers=2, max_pending_bytes=900), stepped)
    assert len(killed) == 2


def test_rewards_are_the_same_after_the_program_s_process_was_killed():
    program = Program(source=SUBTASKS).build()
    frames = np.random.default_rng(0).integers(0, 255, (9, 4, 6, 3), dtype=np.uint8)
    memory, rewards = None, []
    for t in range(9):
        own, memory = program.continue_episode(frames[t : t + 1], memory)
        rewards.extend(own)
        program.close()
    np.testing.assert_allclose(rewards, subtask_rewards(frames), rtol=1e-6)
    program.close()


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


@pytest.mark.parametrize("isolate", [True, False])
def test_a_program_may_be_executed_twice_and_one_continues_what_the_other_began(isolate):
    frames = np.random.default_rng(0).integers(0, 255, (9, 4, 6, 3), dtype=np.uint8)
    programs = [execute(SUBTASKS, f"{i}.py", isolate=isolate) for i in range(2)]
    memory, rewards = None, []
    for t in range(9):
        own, memory = programs[t % 2].run(frames[t : t + 1], memory)
        rewards.extend(own)
    np.testing.assert_allclose(rewards, subtask_rewards(frames), rtol=1e-6)
    for program in programs:
        program.close()


def test_several_views_are_several_episodes_and_their_rewards_are_combined():
    def rewards(**options):
        env = gym.make("VLMRM/Humanoid-kneel-v0", reward=Program(source=SUBTASKS), episode_length=8, **options)
        with closing(env):
            env.reset(seed=0)
            return [env.step(env.action_space.high)[1] for _ in range(8)]

    views = {"azimuth": 180}, {"azimuth": 90}
    each = np.array([rewards(camera=view) for view in views])
    assert (each[0] != each[1]).any()
    np.testing.assert_array_equal(rewards(camera=list(views)), each.min(axis=0))
    np.testing.assert_allclose(rewards(camera=list(views), combine_views="mean"), each.mean(axis=0), rtol=1e-6)


def test_a_program_may_see_the_states():
    expected = []
    env = gym.make(CARTPOLE, reward=Program(source=ANGLE, inputs="states"))
    with closing(env):
        observation, _ = env.reset(seed=1)
        for _ in range(5):
            observation, reward, *_ = env.step(1)
            expected.append(np.float32(np.cos(observation[2])))
            assert reward == pytest.approx(expected[-1], abs=1e-5)
    counted = "class Waited:\n    def reset(self): self.n = 0\n    def __call__(self, state):\n        self.n += 1\n"
    counted += "        assert state.shape == (2,) and state.dtype == 'float64'\n        return self.n / 10"
    rewards = play(reward=Program(source=counted, inputs="states"), num_workers=1)
    np.testing.assert_allclose(rewards[0, :LENGTH], np.minimum(np.arange(1, LENGTH + 1) / 10, 1), rtol=1e-6)
    with pytest.raises(ValueError, match="`combine_views` is not for a reward that sees no view"):
        gym.make(CARTPOLE, reward=Program(source=ANGLE, inputs="states"), combine_views="min")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_program_sees_frames_of_the_size_that_it_asks_for(num_workers):
    source = "def reward(frame):\n    height, width, _ = frame.shape\n    return height + width / 1_000"
    sizes = {
        field: play(reward=Program(source=source, size=field), num_workers=num_workers) for field in [None, (60, 90)]
    }
    assert np.nanmax(sizes[None]) == np.float32(400.6)
    assert np.nanmin(sizes[60, 90]) == np.nanmax(sizes[60, 90]) == np.float32(60.09)


def test_states_are_not_there_for_frames_that_are_stored():
    env = gym.make("FrozenLake-v1", render_mode="rgb_array")
    env = vlmrm_gym.VLMReward(env, reward=Program(source=ANGLE, inputs="states"))
    with closing(env):
        env.reset(seed=0)
        with pytest.raises(ValueError, match='`inputs="states"` needs states from which frames can be drawn'):
            env.step(0)


FUNCTION, CLASS = (
    "def reward(frame):\n    {}",
    "class Task:\n    def reset(self): {}\n    def __call__(self, frame): {}",
)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (FUNCTION.format("return float('nan')"), "must return a finite number for a frame, in float32. Received nan"),
        (FUNCTION.format("return 1e39"), "must return a finite number for a frame, in float32. Received 1e.39"),
        (FUNCTION.format("return 10**400"), "must return a finite number for a frame"),
        ("import numpy as np\n" + FUNCTION.format("return np.float16('inf')"), "a finite number.* Received inf"),
        (FUNCTION.format("return 'high'"), "must return a number or a bool for a frame. Received str"),
        (FUNCTION.format("return frame[..., 0]"), "Received ndarray of shape .4, 6."),
        (FUNCTION.format("return frame.mean(axis=(0, 1, 2), keepdims=True)[0]"), "Received ndarray of shape .1, 1."),
        (FUNCTION.format("pass"), "Received NoneType"),
        (FUNCTION.format("return 1j"), "Received complex"),
        (FUNCTION.format("return frame[0, 0]"), "Received ndarray of shape .3,."),
        (FUNCTION.format("import time; return time.perf_counter()"), "must return the same for the same frame"),
        (FUNCTION.format("import random; return random.random()"), "must return the same for the same frame"),
        ("n = []\n" + FUNCTION.format("n.append(0); return len(n)"), "the same frame. Received 1.0, then 2.0"),
        ("def reward(): return 1", "takes 0 positional arguments"),
        (CLASS.format("pass", "return 1.5"), "a number from 0 to 1, for a sub-task. Received 1.5"),
        (CLASS.format("pass", "return -0.1"), "a number from 0 to 1, for a sub-task. Received -0.1"),
        (CLASS.format("pass", "return None"), "must return a number or a bool for a frame. Received NoneType"),
        (CLASS.format("self.f = lambda: 0", "return 0"), "PicklingError|AttributeError|Can't pickle"),
        (CLASS.format("self.f = bytes(2**24)", "return 0"), "must remember at most 16,777,216 bytes"),
        ("n = []\n" + CLASS.format("n.append(0)", "return len(n) / 9"), "must return the same for the same frame"),
        (FUNCTION.format("return 1") + "\n" + CLASS.format("pass", "return 1"), "not both"),
        ("reward = 3", "It defines neither"),
        ("class Task:\n    def __call__(self, frame): return 1", "It defines neither"),
        ("class _Task:\n    def reset(self): pass\n    def __call__(self, frame): return 1", "It defines neither"),
        ("def reward(frame)\n    return 1", "Line 1: SyntaxError: expected ':'"),
        (FUNCTION.format("return frame.sum() / missing"), "Line 2: NameError: name 'missing' is not defined"),
    ],
)
@pytest.mark.parametrize("isolate", [True, False])
def test_a_bad_program_is_named_with_what_is_wrong(source, message, isolate):
    def run():
        execute(source, "bad.py", isolate=isolate).run(np.zeros((2, 4, 6, 3), dtype=np.uint8))

    with pytest.raises(ProgramError, match=message) as raised:
        run()
    assert str(raised.value).startswith("The program bad.py ")
    assert "\n" not in str(raised.value)


def test_what_classes_are_sub_tasks():
    """In the order of definition, without those that others derive from; what is remembered is of the instance."""
    source = """
from dataclasses import dataclass

class Base:
    def reset(self): self.seen = 0
    def __call__(self, frame): raise NotImplementedError

class Second(Base):
    def __call__(self, frame):
        self.seen += 1
        return self.seen >= 2

@dataclass
class First(Base):
    need: int = 1
    def __call__(self, frame): return frame[0, 0, 0] >= self.need

class Helper:
    def reset(self): pass

third = Second
"""
    frames = np.array([0, 0, 1, 0, 0])[:, None, None, None] * np.ones((5, 2, 2, 3), dtype=np.uint8)
    program = execute(source, "x.py")
    assert program.subtasks == ("Second", "First")
    values, memory = program.run(frames.astype(np.uint8))
    # Second is defined first, and is completed by the second frame; First by the third.
    np.testing.assert_allclose(values, [0, 0.5, 1, 1, 1])
    np.testing.assert_allclose(program.run(frames.astype(np.uint8), memory)[0], 1)
    program.close()


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({}, ValueError, "`path` must be the file of a program, or `source` the program. Received neither"),
        ({"path": "a.py", "source": "x"}, ValueError, "Received both"),
        ({"path": "nowhere.py"}, ValueError, "`path` must be the file of a program: nowhere.py cannot be read"),
        ({"path": "/dev/zero"}, ValueError, "/dev/zero must be a regular file. Received a device"),
        ({"path": "pipe.py"}, ValueError, "pipe.py must be a regular file. Received a pipe"),
        ({"path": "long.py"}, ValueError, "long.py must have at most 1,048,576 bytes. Received 1,048,577"),
        ({"path": "."}, ValueError, "`path` must be the file of a program"),
        ({"source": 3}, TypeError, "`source` must be a text. Received 3"),
        ({"source": BRIGHTNESS, "inputs": "frame"}, ValueError, "`inputs` must be one of 'frames', 'states'"),
        ({"source": BRIGHTNESS, "size": (60, 0)}, ValueError, "`size` must be None, or"),
        ({"source": BRIGHTNESS, "size": (60, 90), "inputs": "states"}, ValueError, "`size` must be None for states"),
        ({"source": BRIGHTNESS, "size": (10**9, 1)}, ValueError, "`size` must have at most 33,554,432 pixels"),
        ({"source": BRIGHTNESS, "isolate": 0}, ValueError, "`isolate` must be True or False"),
        ({"source": BRIGHTNESS, "sha256": "0"}, ValueError, "`source` must be the program whose SHA-256 is 0"),
        ({"source": BRIGHTNESS, "fallback": "nowhere.py"}, ValueError, "`fallback` must be the file of a program"),
    ],
)
def test_fields_that_cannot_be_used(fields, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.py")
    Path("long.py").write_bytes(bytes(2**20 + 1))
    with pytest.raises(error, match=message):
        Program(**fields)


def test_a_file_that_has_changed_is_refused(tmp_path):
    file = tmp_path / "brightness.py"
    file.write_text(BRIGHTNESS)
    program = Program(path=str(file))
    values = json.loads(json.dumps(to_mapping(program)))
    assert from_mapping(values) == program
    assert values["kind"] == "program"
    file.write_text(BRIGHTNESS + "  # better")
    with pytest.raises(ValueError, match=f"`path` must be the program whose SHA-256 is {program.sha256}.*has changed"):
        from_mapping(values)
    assert Program(path=str(file)).sha256 != program.sha256
    # What was read is what runs, also in workers.
    np.testing.assert_allclose(pickle.loads(pickle.dumps(program)).build()(np.zeros((1, 2, 2, 3), np.uint8)), 0)
    file.write_text("def reward(frame): return 1 / 0")
    np.testing.assert_allclose(program.build()(np.full((1, 2, 2, 3), 255, np.uint8)), 1)


def test_a_program_goes_through_gymnasium_s_specs(tmp_path):
    env = gym.make(CARTPOLE, reward=Program(source=BRIGHTNESS))
    spec = gym.envs.registration.EnvSpec.from_json(env.spec.to_json())
    with closing(env), closing(gym.make(spec)) as again:
        for one in (env, again):
            one.reset(seed=0)
        assert env.step(0)[1] == again.step(0)[1] > 0.5


def test_a_program_has_no_head_and_is_not_interpolated():
    make = {"num_envs": 2, "reward": Program(source=BRIGHTNESS), "episode_length": 4}
    with pytest.raises(ValueError, match="`return_features` needs a reward with `encode` and `head`"):
        gym.make_vec(CARTPOLE, return_features=True, **make)
    with pytest.raises(ValueError, match="`score_every` is not for this reward: it says that it cannot"):
        gym.make_vec(CARTPOLE, score_every=4, **make)
    envs = sb3.make_vec_env(CARTPOLE, num_envs=2, reward=Program(source=BRIGHTNESS), episode_length=4)
    with closing(envs):
        agent = DQN(
            "MlpPolicy", envs, replay_buffer_class=sb3.DeferredReplayBuffer, learning_starts=40, buffer_size=100
        )
        agent.learn(16)
        with pytest.raises(RuntimeError, match="`relabel` needs the features that rewards are made of"):
            agent.replay_buffer.relabel(lambda features: features)


FAILING = """
class Task:
    def reset(self): self.seen = 0
    def __call__(self, frame):
        self.seen += 1
        if self.seen == 7:
            raise ArithmeticError("seven")
        return self.seen / 100
"""


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"max_pending_bytes": 900}, {"scoring": "step"}])
def test_the_error_of_a_program_names_the_step_and_leaves_no_process(options):
    before = children()
    with pytest.raises(ProgramError, match=r'Line 7: ArithmeticError: seven." The frame is of environment \d, step 6.'):
        play(reward=Program(source=FAILING), **options)
    until = time.monotonic() + 10
    while children() != before:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_after_the_error_of_a_program_the_call_is_repeated(stepped):
    """The states are kept: a program that fails by chance, or for lack of time, loses no reward."""
    source = FAILING.replace("raise Arithmetic", "import os; os.kill(0, 9); raise Arithmetic")
    envs = gym.make_vec(
        CARTPOLE, num_envs=2, reward=Program(source=source), episode_length=20, max_pending_bytes=900, overlap=True
    )
    with closing(envs):
        envs.reset(seed=0)
        for _ in range(16):
            with suppress(ProgramError):
                envs.step(np.zeros(2, dtype=int))
        for _ in range(2):
            with pytest.raises(ProgramError, match="system call that is forbidden"):
                envs.flush()


def test_a_fallback_answers_where_the_program_fails(tmp_path):
    """Sub-tasks do not see the frames on which they failed."""
    fallback = tmp_path / "before.py"
    fallback.write_text("def reward(frame):\n    return -1 - float(frame[0, 0, 0])")
    source = """
class Task:
    def reset(self): self.seen = 0
    def __call__(self, frame):
        self.seen += 1
        if frame[0, 0, 0] in (0, 3, 4):
            raise ValueError
        return self.seen / 100
"""
    spec = Program(source=source, fallback=str(fallback))
    frames = np.arange(7, dtype=np.uint8)[:, None, None, None] * np.ones((7, 2, 2, 3), dtype=np.uint8)
    program = spec.build()
    with pytest.warns(UserWarning, match=r'on frame 0 of 7. It says: "Line 7: ValueError." Its fallback answers'):
        whole, _ = program.continue_episode(frames, None)
    np.testing.assert_allclose(whole, [-1, 0.01, 0.02, -4, -5, 0.03, 0.04], rtol=1e-6)
    memory, cut = None, []
    with warnings.catch_warnings(action="ignore"):
        for frame in frames:
            own, memory = program.continue_episode(frame[None], memory)
            cut.extend(own)
    np.testing.assert_array_equal(cut, whole)
    program.close()
    many = Program(source="def reward(frame):\n    raise ValueError", fallback=str(fallback), isolate=False).build()
    with pytest.warns(UserWarning, match="Its fallback answers"):
        np.testing.assert_array_equal(many(np.zeros((1_200, 1, 1, 3), dtype=np.uint8)), -1)
    fallback.write_text(SUBTASKS)
    with pytest.raises(ValueError, match="SHA-256"):
        replace(spec)
    with pytest.raises(ValueError, match=r"`fallback` must define a function reward\(frame\)"):
        Program(source=source, fallback=str(fallback)).build()
