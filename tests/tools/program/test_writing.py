"""`vlmrm-gym program write` with a server that mends a fault in its program by the frames that it is shown."""

import json
import re
import warnings

import numpy as np
import pytest
from PIL import Image
from poles import AXLE, POLE
from vlm_server import KEY, VLMServer, completion, read, status

import vlmrm_gym
from vlmrm_gym._util.errors import InputError
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.cli.program import write
from vlmrm_gym.tools.program.results import Failure
from vlmrm_gym.tools.program.writing import ask_to_mend, read_program

CARTPOLE = "VLMRM/CartPole-v1"
LEAN = f"""
import numpy as np

def centre(frame, color):
    return np.argwhere(np.abs(frame.astype(int) - color).sum(-1) < 60).mean(0)

def reward(frame):
    if not frame.any():
        return 0.0
    up, right = (centre(frame, {POLE}) - centre(frame, {AXLE})) * [-1, 1]
    lean = np.rad2deg(np.arctan2(right, up))
    off = LEAN
    return True if off <= 12 else max(0.0, 0.9 - off / 180)
"""
SMALL = {"model": "m", "size": (120, 180), "episodes": 2, "steps": 30}
FAULTY, MENDED = LEAN.replace("LEAN", "lean"), LEAN.replace("LEAN", "abs(lean)")
"""The first takes every pole that leans to the left for an upright one."""


class Author(VLMServer):
    """Names the sub-tasks, writes the faulty program, and mends it once an image shows a pole that leans left."""

    def __init__(self, programs=(FAULTY, MENDED), **settings):
        super().__init__(**settings)
        self.programs, self.shown = programs, []

    def complete(self, body, number):
        *_, last = body["messages"]
        images, text = read([last])
        self.shown.append((images, text))
        if "Write no program yet" in text:
            return completion("1. The pole is upright: it is above the axle.")
        saw_fault = any(image.any() and leans_left(image) for image in images)
        program = self.programs[1] if saw_fault else self.programs[0]
        return completion(
            f"<think>Perhaps so:\n```python\ndef reward(frame): return 1\n```</think>Here:\n```python{program}```"
        )


def leans_left(image):
    """Whether an image shows a pole that leans to the left by more than 12 degrees."""
    find = (np.argwhere(np.abs(image.astype(int) - color).sum(-1) < 60).mean(0) for color in (POLE, AXLE))
    up, right = (next(find) - next(find)) * [-1, 1]
    return np.rad2deg(np.arctan2(right, up)) < -12


@pytest.fixture
def author(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with Author() as server:
        yield server


@pytest.mark.slow
def test_a_fault_is_mended_by_the_frames_that_are_fed_back(author, tmp_path, capsys):
    """And nothing is asked twice: after a budget is used up, a higher one goes on."""
    out = tmp_path / "out"
    settings = {"endpoint": author.url, "out": out, **SMALL}
    with pytest.raises(InputError, match=r"budget of m is used up \(max_calls=2.* after 2 requests and 220 tokens"):
        write(CARTPOLE, max_calls=2, **settings)
    assert (out / "program_1.py").read_text().strip() == FAULTY.strip()
    assert write(CARTPOLE, max_calls=9, overwrite=True, **settings).accepted
    assert "The program is accepted." in capsys.readouterr().out
    assert author.requests == 3
    (begin, _), (none, asked), (back, why) = author.shown
    assert len(begin) == 5  # two untrained episodes of each behaviour: three initial states, and two goals
    assert not none
    assert "uint8 (120, 180, 3)" in asked
    assert "accepted if at least 100% of the episodes that reach the goal complete it, at most 10% of those of" in asked
    assert any(image.any() and leans_left(image) for image in back)
    assert "at most 10% of the episodes" in why
    assert (out / "program.py").read_text().strip() == MENDED.strip() == (out / "program_2.py").read_text().strip()
    found = [json.loads((out / f"round_{n}" / "verification.json").read_text()) for n in (1, 2)]
    assert [one["accepted"] for one in found] == [False, True]
    text = (out / "conversation.md").read_text()
    pictures = re.findall(r"!\[\]\((pictures/\w+\.png)\)", text)
    assert len(pictures) == len(begin) + len(back)
    assert all((out / name).is_file() for name in pictures)
    assert "1. The pole is upright" in text
    written = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert KEY.encode() not in written
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a verified program does not warn
        vlmrm_gym.Program(path=str(out / "program.py")).build().close()


def test_a_program_that_is_not_mended_is_not_accepted(author, tmp_path, capsys):
    """The goal is shown by a picture in place of states."""
    Image.fromarray(np.full((40, 60, 3), 7, np.uint8)).save(tmp_path / "goal.png")
    flags = ["--endpoint", author.url, "--model", "m", "--size", "[120, 180]", "--episodes", "2", "--steps", "30"]
    flags += ["--rounds", "1", "--goal-image", str(tmp_path / "goal.png"), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as exit:
        main(["program", "write", CARTPOLE, *flags])
    assert exit.value.code == 1
    assert "The program is not accepted." in capsys.readouterr().out
    assert (tmp_path / "out" / "program.py").read_text().strip() == FAULTY.strip()
    assert not (tmp_path / "out" / "program.verification.json").exists()
    images, _ = author.shown[0]
    assert len(images) == 4
    np.testing.assert_array_equal(images[-1], 7)


NO_PROGRAM = {
    "I cannot write programs.": "There is no program in your answer.",
    "```python\ndef reward(frame)\n    return 1\n```": r"Line 1.*expected ':'",
    "```python\ndef score(frame):\n    return 1\n```": "The program cannot be executed",
}


def test_answers_without_a_program_are_said_and_an_error_in_the_end(author, tmp_path, subtests):
    settings = {"endpoint": author.url, **SMALL, "episodes": 1, "steps": 5, "rounds": 2}
    for number, (answer, fed_back) in enumerate(NO_PROGRAM.items()):
        author.complete = lambda body, n, text=answer: (
            author.shown.append(read(body["messages"][-1:])) or completion(text)
        )
        with subtests.test(answer):
            with pytest.raises(InputError, match=r"`model` must answer with a program .* None of 2 answers"):
                write(CARTPOLE, **settings, out=tmp_path / str(number))
            assert re.search(fed_back, author.shown[-1][1], flags=re.DOTALL)
            assert str(tmp_path) not in author.shown[-1][1]
            assert answer.splitlines()[0] in (tmp_path / str(number) / "conversation.md").read_text()
    author.faults.extend([status(400, "no images, please")] * 9)
    with pytest.raises(InputError, match=r"answered 400: .*no images, please"):
        write(CARTPOLE, **settings, out=tmp_path / "failed")


BAD_INPUT = [
    ({"rounds": 0}, "`rounds` must be at least 1. Received 0"),
    ({"endpoint": "nowhere"}, "`base_url` must be an address"),
    ({"api_key_env": "NO_SUCH_KEY"}, "`api_key_env` must name an environment variable"),
    ({"goal_image": "nowhere.png"}, "There is no file or folder nowhere.png"),
    ({"id": "CliffWalking-v1"}, "`prompt` must be given"),
]


def test_bad_input_is_named(author, in_folder, subtests):
    for settings, message in BAD_INPUT:
        with subtests.test(message), pytest.raises(InputError, match=message):
            write(**{"id": CARTPOLE, "model": "m", "endpoint": author.url, **settings})
    assert not (in_folder / "program" / "program.py").exists()


def test_failures_of_different_rules_come_first_with_what_was_returned():
    where = {"behaviour": "random", "episode": 0, "steps": np.array([3]), "frames": np.zeros((1, 4, 4, 3), np.uint8)}
    given = [("A.", 1.0), ("A.", 0.5), ("B.", np.nan)]
    (message,) = ask_to_mend([Failure(rule=rule, values=np.array([value]), **where) for rule, value in given])
    _, text = read([message])
    said = [("A", "the reward was 1"), ("B", "failed"), ("C", "the reward was 0.5")]
    assert re.findall(r"Episode (\w), step 3: ([^\n]*)", text) == said
    assert text.count("- A.") == text.count("- B.") == 1


def test_what_is_read_as_a_program():
    assert read_program(None) is read_program("no") is None
    assert read_program("<think>```\ndef a(): 0\n```</think>none") is None
    assert read_program("def reward(frame):\n    return 1") == "def reward(frame):\n    return 1"
    assert read_program("```\nclass A: pass\n```\nas in\n```\nx = 1\n```") == "class A: pass\n"
    cut_off = "```python\nimport numpy\ndef reward(frame):\n    return 1\n"
    assert read_program(cut_off) == "import numpy\ndef reward(frame):\n    return 1"
