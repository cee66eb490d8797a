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
from vlmrm_gym.cli import main
from vlmrm_gym.cli.program import write
from vlmrm_gym.errors import InputError
from vlmrm_gym.programs.results import Failure
from vlmrm_gym.programs.writing import ask_to_mend, read_program

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
SMALL = {"size": (120, 180), "episodes": 4, "steps": 40}
FLAGS = ["--size", "[120, 180]", "--episodes", "4", "--steps", "40"]
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


def test_a_fault_is_mended_by_the_frames_that_are_fed_back(author, tmp_path, capsys):
    out = tmp_path / "written"
    flags = ["--endpoint", author.url, "--model", "m", *FLAGS, "--out", str(out)]
    main(["program", "write", CARTPOLE, *flags])
    said = capsys.readouterr().out
    assert "The program is accepted." in said
    assert author.requests == 3
    (begin, _), (none, asked), (back, why) = author.shown
    assert len(begin) == 6  # three initial states, three goals
    assert not none
    assert "uint8 (120, 180, 3)" in asked
    assert any(image.any() and leans_left(image) for image in back)
    assert "at most 10% of the episodes" in why
    assert (out / "program.py").read_text().strip() == MENDED.strip() == (out / "program_2.py").read_text().strip()
    assert (out / "program_1.py").read_text().strip() == FAULTY.strip()
    found = [json.loads((out / f"round_{n}" / "verification.json").read_text()) for n in (1, 2)]
    assert [one["accepted"] for one in found] == [False, True]
    text = (out / "conversation.md").read_text()
    assert len(re.findall(r"!\[\]\(pictures/\w+\.png\)", text)) == len(begin) + len(back)
    assert "1. The pole is upright" in text
    assert "def reward" in text
    for name in set(re.findall(r"pictures/\w+\.png", text)):
        assert (out / name).is_file()
    written = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert KEY.encode() not in written

    main(["program", "write", CARTPOLE, *flags, "--overwrite"])
    assert author.requests == 3  # nothing is asked twice
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a verified program does not warn
        vlmrm_gym.Program(path=str(out / "program.py")).build().close()


def test_a_program_that_is_not_mended_is_not_accepted(author, tmp_path, capsys):
    author.programs = (FAULTY, FAULTY)
    flags = ["--endpoint", author.url, "--model", "m", *FLAGS, "--rounds", "2"]
    with pytest.raises(SystemExit) as exit:
        main(["program", "write", CARTPOLE, *flags, "--out", str(tmp_path / "out")])
    assert exit.value.code == 1
    assert "The program is not accepted." in capsys.readouterr().out
    assert (tmp_path / "out" / "program.py").read_text().strip() == FAULTY.strip()
    assert not (tmp_path / "out" / "program.verification.json").exists()


@pytest.mark.parametrize(
    ("answer", "fed_back"),
    [
        ("I cannot write programs.", "There is no program in your answer."),
        ("```python\ndef reward(frame)\n    return 1\n```", r"Line 1.*expected ':'"),
        ("```python\ndef score(frame):\n    return 1\n```", "The program cannot be executed"),
    ],
)
def test_answers_without_a_program_are_said_and_an_error_in_the_end(answer, fed_back, author, tmp_path):
    author.complete = lambda body, number: author.shown.append(read(body["messages"][-1:])) or completion(answer)
    with pytest.raises(
        InputError, match=r"`model` must answer with a program that can be executed\. None of 2 answers"
    ):
        write(
            CARTPOLE,
            endpoint=author.url,
            model="m",
            size=(120, 180),
            episodes=1,
            steps=5,
            rounds=2,
            out=tmp_path / "out",
        )
    assert re.search(fed_back, author.shown[-1][1], flags=re.DOTALL)
    assert str(tmp_path) not in author.shown[-1][1]
    assert answer.splitlines()[0] in (tmp_path / "out" / "conversation.md").read_text()


def test_a_budget_ends_it_and_a_higher_one_goes_on(author, tmp_path):
    settings = {"endpoint": author.url, "model": "m", **SMALL, "out": tmp_path / "out"}
    with pytest.raises(InputError, match=r"budget of m is used up \(call_budget=2.* after 2 requests and 220 tokens"):
        write(CARTPOLE, call_budget=2, **settings)
    assert (tmp_path / "out" / "program_1.py").is_file()
    assert write(CARTPOLE, call_budget=9, overwrite=True, **settings).accepted
    assert author.requests == 3


def test_a_server_that_fails_is_named(author, tmp_path):
    author.faults.extend([status(400, "no images, please")] * 9)
    with pytest.raises(InputError, match=r"answered 400: .*no images, please"):
        write(CARTPOLE, endpoint=author.url, model="m", size=(120, 180), episodes=1, steps=5, out=tmp_path / "out")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "`rounds` must be at least 1. Received 0"),
        ({"endpoint": "nowhere"}, "`base_url` must be an address"),
        ({"key_variable": "NO_SUCH_KEY"}, "`key_variable` must name an environment variable"),
        ({"goal_image": "nowhere.png"}, "There is no file or folder nowhere.png"),
        ({"id": "CliffWalking-v1"}, "`prompt` must be given"),
    ],
)
def test_bad_input_is_named(settings, message, author, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        write(**{"id": CARTPOLE, "model": "m", "endpoint": author.url, **settings})
    assert not (tmp_path / "program" / "program.py").exists()


def test_pictures_of_the_goal_are_shown_in_place_of_states(author, tmp_path):
    Image.fromarray(np.full((40, 60, 3), 7, np.uint8)).save(tmp_path / "goal.png")
    write(
        CARTPOLE,
        endpoint=author.url,
        model="m",
        **{**SMALL, "episodes": 3, "steps": 8},
        rounds=1,
        goal_image=tmp_path / "goal.png",
        out=tmp_path / "out",
    )
    images, _ = author.shown[0]
    assert len(images) == 4
    np.testing.assert_array_equal(images[-1], 7)


def test_failures_of_different_rules_come_first_with_what_was_returned():
    def failure(rule, value):
        return Failure(
            rule=rule,
            behaviour="random",
            episode=0,
            steps=np.array([3]),
            frames=np.zeros((1, 4, 4, 3), np.uint8),
            values=np.array([value]),
        )

    (message,) = ask_to_mend([failure("A.", 1.0), failure("A.", 0.5), failure("B.", np.nan)])
    _, text = read([message])
    assert re.findall(r"Episode (\w), step 3: ([^\n]*)", text) == [
        ("A", "the reward was 1"),
        ("B", "failed"),
        ("C", "the reward was 0.5"),
    ]
    assert text.count("- A.") == text.count("- B.") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("no", None),
        ("def reward(frame):\n    return 1", "def reward(frame):\n    return 1"),
        ("```\nclass A: pass\n```\nas in\n```\nx = 1\n```", "class A: pass\n"),
        (
            "```python\nimport numpy\ndef reward(frame):\n    return 1\n",
            "import numpy\ndef reward(frame):\n    return 1",
        ),
        ("<think>```\ndef a(): 0\n```</think>none", None),
    ],
)
def test_what_is_read_as_a_program(text, expected):
    assert read_program(text) == expected
