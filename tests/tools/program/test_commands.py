"""`vlmrm-gym program verify`, and the warning of programs that were not verified."""

import json
import warnings

import gymnasium as gym
import pytest

from vlmrm_gym import Program
from vlmrm_gym.rewards.program.spec import record_file
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.cli.program import verify

CARTPOLE = "VLMRM/CartPole-v1"
UPRIGHT = "def reward(state):\n    return bool(abs(state[1]) < 0.209 and abs(state[0]) < 2.4)"
STATES = ["--inputs", "states"]
FEW = ["--episodes", "1", "--steps", "60"]


def write(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


pytestmark = pytest.mark.usefixtures("in_folder")


def ended(capsys, *arguments):
    """The exit code of a command, and what it printed."""
    code = 0
    try:
        main(["program", "verify", *map(str, arguments)])
    except SystemExit as error:
        code = error.code
    return code, *capsys.readouterr()


def warned_of(program):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program.build().close()
    return [str(one.message) for one in caught if "was not verified" in str(one.message)]


def test_an_accepted_program_is_recorded_and_no_longer_warns(tmp_path, capsys):
    file = write(tmp_path, "pole.py", UPRIGHT)
    program = Program(path=str(file), inputs="states")
    code, out, _ = ended(capsys, file, CARTPOLE, *STATES, *FEW)
    assert code == 0
    assert "The program is accepted." in out
    assert "100.0% of the frames are right" in out
    record = json.loads(record_file(file).read_text())
    assert record["sha256"] == program.sha256
    assert record["environment"] == CARTPOLE
    assert record["episodes"]["random"] == 1
    report = (tmp_path / "pole_verification" / "report.html").read_text()
    assert "The program is accepted." in report
    numbers = json.loads((tmp_path / "pole_verification" / "verification.json").read_text())
    assert numbers["accepted"]
    assert numbers["accuracy"]["accuracy"] == 1
    assert warned_of(program) == []
    file.write_text(UPRIGHT + "  # changed")
    assert len(warned_of(Program(path=str(file), inputs="states"))) == 1


def test_a_program_that_is_not_accepted_loses_its_record(tmp_path, capsys):
    file = write(tmp_path, "always.py", "def reward(state):\n    return True")
    record_file(file).write_text(json.dumps({"sha256": Program(path=str(file)).sha256}))
    code, out, _ = ended(capsys, file, CARTPOLE, *STATES, *FEW, "--out", "found")
    assert code == 1
    assert "at most 10%, broken" in out
    assert "The program must be completed by at most 10% of the episodes: random." in out
    assert "The program is not accepted." in out
    assert not record_file(file).exists()
    report = (tmp_path / "found" / "report.html").read_text()
    assert report.count("<figure") == report.count("data:image/jpeg;base64,") > 2
    (failure, *_) = json.loads((tmp_path / "found" / "verification.json").read_text())["failures"]
    assert set(failure) == {"rule", "behaviour", "episode", "steps", "values"}


def test_without_experts_nothing_was_verified(tmp_path, capsys):
    file = write(tmp_path, "high.py", "def reward(frame):\n    return False")
    result = verify(file, "Acrobot-v1", episodes=1, steps=3, out=str(tmp_path / "found"))
    assert (tmp_path / "found" / "report.html").is_file()
    assert result.verified is result.accepted is False
    assert "Nothing was verified" in capsys.readouterr().out
    assert not record_file(file).exists()


BAD_INPUT = [
    (["nowhere.py", CARTPOLE], "nowhere.py cannot be read"),
    (["empty.py", CARTPOLE, *FEW], "must define a function reward(frame), or classes"),
    (["good.py"], "`id` must be a registered ID, module:ID or package.module:function. Received None"),
    (["good.py", CARTPOLE, "--episodes", "0"], "`episodes` must be an integer of at least 1. Received 0"),
    (["good.py", CARTPOLE, "--limit-random", "2"], "`random` must be a number from 0 to 1. Received 2.0."),
    (["good.py", CARTPOLE, "--size", "[0, 1]"], "`size` must be None, or"),
    (["good.py", CARTPOLE, "--run", "nowhere", *FEW], "nowhere"),
    (["good.py", "VLMRM/Humanoid-kneel-v0", "--camera", "front-side", *FEW], "`camera` must have one view here"),
]


def test_bad_input_is_told(tmp_path, capsys, subtests):
    for name, text in {"empty": "x = 1", "good": UPRIGHT}.items():
        write(tmp_path, f"{name}.py", text)
    for arguments, message in BAD_INPUT:
        with subtests.test(message):
            code, _, error = ended(capsys, *arguments)
            assert code == 2
            assert message in error
            assert not list(tmp_path.glob("*_verification"))


def test_one_warning_names_the_command_at_the_door_of_environments():
    """Also of several workers, and of isolated processes."""
    for options in ({}, {"num_workers": 2}):
        source = f"def reward(frame):\n    return {len(options)}  # a program of this test alone"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            gym.make_vec(CARTPOLE, num_envs=2, reward=Program(source=source), episode_length=2, **options).close()
            if not options:
                gym.make(CARTPOLE, reward=Program(source=source)).close()
        (message,) = [str(one.message) for one in caught if "was not verified" in str(one.message)]
        assert message.endswith("in a file, and run: vlmrm-gym program verify FILE ENV")
