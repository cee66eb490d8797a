"""A program at the doors: commands, files, trainings that are resumed, and what needs trust."""

import csv
import json

import gymnasium as gym
import numpy as np
import pytest
import yaml
from check_subjects import few_states
from PIL import Image

from vlmrm_gym import Program
from vlmrm_gym._util.errors import InputError
from vlmrm_gym.rewards import to_mapping
from vlmrm_gym.tools.check.pipeline import ORDERED
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.cli.check import check
from vlmrm_gym.tools.cli.score import score

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

CARTPOLE = "VLMRM/CartPole-v1"
RED = "def reward(frame):\n    return frame[..., 0].mean()"
WAITED = "class Waited:\n    def reset(self): self.n = 0\n    def __call__(self, frame):\n        self.n += 1\n"
WAITED += "        return self.n / 4"
TRAINING = ["--rl.n-steps", "60", "--rl.n-envs-per-worker", "2", "--rl.episode-length", "10"]
TRAINING += ["--logging.video-freq", "0", "--rl.gradient-steps", "1", "--rl.batch-size", "4"]
TRAINING += ["--rl.policy-kwargs", "{net_arch: [4]}"]


def write(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


@pytest.fixture
def red(tmp_path):
    return write(tmp_path, "red.py", RED)


@pytest.fixture
def waited(tmp_path):
    return write(tmp_path, "waited.py", WAITED)


def flags(file):
    return ["--reward", "program", "--reward-kwargs", json.dumps({"path": str(file)})]


def pictures(folder, *reds):
    folder.mkdir()
    for number, value in enumerate(reds):
        Image.new("RGB", (8, 6), (value, 10, 10)).save(folder / f"{number}.png")
    return folder


def scores(folder):
    with (folder / "rewards.csv").open(newline="", encoding="utf-8") as file:
        return [float(row[-1]) for row in list(csv.reader(file))[1:]]


def failed(capsys, *arguments, code=2):
    with pytest.raises(SystemExit) as raised:
        main(list(map(str, arguments)))
    assert raised.value.code == code
    return capsys.readouterr().err


def test_pictures_are_scored(red, waited, tmp_path, capsys):
    shown = pictures(tmp_path / "pictures", 0, 50, 200)
    main(["score", str(shown), *flags(red), "--no-video", "--out", str(tmp_path / "red")])
    assert scores(tmp_path / "red") == [0, 50, 200]
    main(["score", str(shown), *flags(waited), "--no-video", "--out", str(tmp_path / "waited")])
    assert scores(tmp_path / "waited") == [0.25, 0.5, 0.75]
    broken = write(tmp_path, "broken.py", "def reward(frame):\n    return 1 / int(frame[0, 0, 0] != 50)")
    error = failed(capsys, "score", shown, *flags(broken), "--no-video", "--out", tmp_path / "broken")
    assert (
        f'The program {broken} failed on frame 1 of 3. It says: "Line 2: ZeroDivisionError: division by zero."' in error
    )


def test_a_check_measures_sub_tasks_on_rollouts_only_and_programs_of_states(red, waited, tmp_path):
    with few_states():
        reports = [
            check(CARTPOLE, reward=reward, out=tmp_path / str(number))
            for number, reward in enumerate((Program(path=str(red)), Program(path=str(waited))))
        ]
    assert [row.measures.states for report in reports for row in report.table] == ["states around the goal", "rollouts"]
    assert ORDERED in reports[1].notes
    assert ORDERED not in reports[0].notes
    assert reports[1].exploits.left_out == ORDERED
    assert "measured on the rollouts only" in (tmp_path / "1" / "report.html").read_text()
    for landscape, name in zip(reports[1].landscapes, ("random", "constant"), strict=True):
        np.testing.assert_allclose(landscape.curves["reward"][:4], [0.25, 0.5, 0.75, 1])  # completed by the fourth step
        assert landscape.title == f"Along a rollout: {name} actions"
    angle = "import math\ndef reward(state):\n    return math.cos(state[1])"
    with few_states():
        report = check(CARTPOLE, reward=Program(source=angle, inputs="states"), out=tmp_path / "states")
    assert report.table[0].measures.auc.value == 1  # success is an angle
    assert not any("black" in control.name for control in report.controls)


def test_a_training_keeps_its_program_and_is_resumed_with_the_same(waited, tmp_path, capsys):
    """Also one that is a part of a reward."""
    program = {"path": str(waited)}
    reward = {"name": "sum", "kwargs": {"terms": [{"kind": "program", **program}, {"kind": "task_reward"}]}}
    file = write(tmp_path, "config.yaml", yaml.safe_dump({"env_name": CARTPOLE, "reward": reward}))
    main(["train", str(file), *TRAINING, "--base-path", str(tmp_path), "--run-name", "run"])
    run = tmp_path / "run"
    assert (run / "program.py").read_text() == WAITED
    kept = yaml.safe_load((run / "config.yaml").read_text())["reward"]["kwargs"]
    assert kept["terms"][0].items() >= {**program, "sha256": Program(**program).sha256}.items()
    returns = [float(row["vlm_return"]) for row in csv.DictReader((run / "metrics.csv").open())]
    np.testing.assert_allclose(returns, 0.25 + 0.5 + 0.75 + 7 + 10)
    main(["evaluate", str(run), "--no-video", "--episodes", "1"])
    main(["train", "--resume", str(run), "--rl.n-steps", "80"])
    waited.write_text(WAITED + "  # another")
    error = failed(capsys, "train", "--resume", run, "--rl.n-steps", "100")
    assert "must be the program whose SHA-256 is" in error
    assert "it has changed" in error
    assert failed(capsys, "evaluate", run, "--no-video", "--episodes", "1").count("it has changed") == 1


def test_a_training_stops_where_its_program_fails(tmp_path, capsys):
    fault = WAITED.replace("return self.n / 4", "assert self.n < 9\n        return self.n / 40")
    broken = write(tmp_path, "broken.py", fault)
    error = failed(capsys, "train", CARTPOLE, *TRAINING, "--base-path", tmp_path, *flags(broken), "--run-name", "run")
    assert f'The program {broken} failed on frame 8 of 10. It says: "Line 5: AssertionError."' in error
    assert "The frame is of environment 0, step 8." in error
    assert "Stopped. To resume from step " in error


def test_an_isolated_program_needs_no_trust_and_a_trusted_one_does(red, tmp_path, capsys):
    shown = pictures(tmp_path / "pictures", 7)
    file = tmp_path / "reward.json"
    file.write_text(json.dumps(to_mapping(Program(path=str(red)))))
    assert scores(score(shown, reward=str(file), out=tmp_path / "1", video=False)) == [7]
    file.write_text(json.dumps(to_mapping(Program(path=str(red), isolate=False))))
    with pytest.raises(InputError, match=r"names code that would be run.*pass --trust-code"):
        score(shown, reward=str(file), out=tmp_path / "2", video=False)
    assert scores(score(shown, reward=str(file), out=tmp_path / "2", video=False, trust_code=True)) == [7]
    config = {"env_name": CARTPOLE, "reward": {"name": "program", "kwargs": {"path": str(red), "isolate": False}}}
    yaml_file = write(tmp_path, "config.yaml", yaml.safe_dump(config))
    assert "If you trust it, pass --trust-code" in failed(capsys, "train", yaml_file, "--dry-run")
    main(["train", str(yaml_file), "--dry-run", "--trust-code"])


def test_where_programs_cannot_be_isolated_they_are_refused_or_trusted(red, monkeypatch):
    monkeypatch.setattr("vlmrm_gym.rewards.program.execution.is_supported", lambda: False)
    with pytest.raises(InputError, match=r"cannot be isolated.*isolate=False to trust it.*needs --trust-code"):
        gym.make(CARTPOLE, reward=Program(path=str(red)))
    gym.make(CARTPOLE, reward=Program(path=str(red), isolate=False)).close()
