"""What a program may define and answer, the fields of its specification, and its file."""

import json
import os
import pickle
from contextlib import closing
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from vlmrm_gym import Program
from vlmrm_gym.rewards import from_mapping, to_mapping
from vlmrm_gym.rewards.program.execution import execute
from vlmrm_gym.rewards.program.spec import ProgramError

CARTPOLE = "VLMRM/CartPole-v1"
BRIGHTNESS = "def reward(frame):\n    return frame.mean() / 255"
FUNCTION = "def reward(frame):\n    {}"
CLASS = "class Task:\n    def reset(self): {}\n    def __call__(self, frame): {}"
BAD = [
    (FUNCTION.format("return float('nan')"), "must return a finite number for a frame, in float32. Received nan"),
    (FUNCTION.format("return 1e39"), "must return a finite number for a frame, in float32. Received 1e.39"),
    ("import numpy as np\n" + FUNCTION.format("return np.float16('inf')"), "a finite number.* Received inf"),
    (FUNCTION.format("return frame[..., 0]"), "Received ndarray of shape .4, 6."),
    ("n = []\n" + FUNCTION.format("n.append(0); return len(n)"), "the same frame. Received 1.0, then 2.0"),
    ("def reward(): return 1", "takes 0 positional arguments"),
    (CLASS.format("pass", "return 1.5"), "a number from 0 to 1, for a sub-task. Received 1.5"),
    (CLASS.format("pass", "return None"), "must return a number or a bool for a frame. Received NoneType"),
    (CLASS.format("self.f = lambda: 0", "return 0"), "PicklingError|AttributeError|Can't pickle"),
    (CLASS.format("self.f = bytes(2**24)", "return 0"), "must remember at most 16,777,216 bytes"),
    ("n = []\n" + CLASS.format("n.append(0)", "return len(n) / 9"), "must return the same for the same frame"),
    (FUNCTION.format("return 1") + "\n" + CLASS.format("pass", "return 1"), "not both"),
    ("reward = 3", "It defines neither"),
    (CLASS.format("pass", "return 1").replace("Task", "_Task"), "It defines neither"),
    (CLASS.format("pass", "return 1") + "\nTask.__name__ = '\x1b[31m'", "whose names are identifiers"),
]


def test_a_bad_program_is_named_with_what_is_wrong(subtests):
    for source, message in BAD:
        with subtests.test(source):
            with pytest.raises(ProgramError, match=message) as raised:
                execute(source, "bad.py", isolate=False).run(np.zeros((2, 4, 6, 3), dtype=np.uint8))
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
    frames = np.array([0, 0, 1, 0, 0], dtype=np.uint8)[:, None, None, None] * np.ones((5, 2, 2, 3), dtype=np.uint8)
    program = execute(source, "x.py")
    assert program.subtasks == ("Second", "First")
    values, memory = program.run(frames)
    # Second is defined first, and is completed by the second frame; First by the third.
    np.testing.assert_allclose(values, [0, 0.5, 1, 1, 1])
    np.testing.assert_allclose(program.run(frames, memory)[0], 1)
    program.close()


def test_functions_are_scored_by_workers_and_sub_tasks_where_their_episode_is():
    """What defines a function is told by its names; a program that Python cannot parse is for `build` to refuse."""
    functions = (
        BRIGHTNESS,
        "reward = len",
        "from math import cos as reward",
        "if True:\n    def reward(frame): return 1",
        "def (",
    )
    assert all(Program(source=source).in_workers for source in functions)
    subtasks = (CLASS.format("pass", "return 1"), "class A:\n    def reward(self): pass", "print(reward)")
    assert not any(Program(source=source).in_workers for source in subtasks)


FIELDS = [
    ({}, ValueError, "`path` must be the file of a program, or `source` the program. Received neither"),
    ({"path": "nowhere.py"}, ValueError, "nowhere.py cannot be read"),
    ({"path": "pipe.py"}, ValueError, "pipe.py must be a regular file. Received a pipe"),
    ({"path": "long.py"}, ValueError, "long.py must have at most 1,048,576 bytes. Received 1,048,577"),
    ({"source": 3}, TypeError, "`source` must be a text. Received 3"),
    ({"source": BRIGHTNESS, "inputs": "frame"}, ValueError, "`inputs` must be one of 'frames', 'states'"),
    ({"source": BRIGHTNESS, "size": (10**9, 1)}, ValueError, "`size` must have at most 33,554,432 pixels"),
    ({"source": BRIGHTNESS, "isolate": 0}, ValueError, "`isolate` must be True or False"),
]


def test_fields_that_cannot_be_used(in_folder, subtests):
    os.mkfifo("pipe.py")
    Path("long.py").write_bytes(bytes(2**20 + 1))
    for fields, error, message in FIELDS:
        with subtests.test(message), pytest.raises(error, match=message):
            Program(**fields)


def test_a_file_that_has_changed_is_refused(tmp_path):
    """What was read is what runs: in workers, from a mapping and from Gymnasium's specs."""
    file = tmp_path / "brightness.py"
    file.write_text(BRIGHTNESS)
    program = Program(path=str(file))
    env = gym.make(CARTPOLE, reward=program)
    spec = gym.envs.registration.EnvSpec.from_json(env.spec.to_json())
    with closing(env), closing(gym.make(spec)) as again:
        for one in (env, again):
            one.reset(seed=0)
        assert env.step(0)[1] == again.step(0)[1] > 0.5
    values = json.loads(json.dumps(to_mapping(program)))
    assert from_mapping(values) == program
    assert values["kind"] == "program"
    file.write_text("def reward(frame): return 1 / 0")
    with pytest.raises(ValueError, match=f"`path` must be the program whose SHA-256 is {program.sha256}.*has changed"):
        from_mapping(values)
    assert Program(path=str(file)).sha256 != program.sha256
    np.testing.assert_allclose(pickle.loads(pickle.dumps(program)).build()(np.full((1, 2, 2, 3), 255, np.uint8)), 1)
