"""What holds for every command: where the ID stands, rewards of any kind, usage errors, the overview."""

import csv
import json
import re
import subprocess
import sys
from contextlib import closing

import minari
import numpy as np
import pytest
from check_subjects import few_states
from own_kind import Level
from PIL import Image

import vlmrm_gym
from vlmrm_gym._util.errors import InputError
from vlmrm_gym.envs.make import make_base_env
from vlmrm_gym.rewards import to_mapping
from vlmrm_gym.rewards.specification import KINDS
from vlmrm_gym.states import StateView
from vlmrm_gym.tasks import TASKS
from vlmrm_gym.tools.cli import COMMANDS, main
from vlmrm_gym.tools.cli.check import Check, check
from vlmrm_gym.tools.cli.dataset import Dataset
from vlmrm_gym.tools.cli.score import score
from vlmrm_gym.tools.cli.settings import parse

CARTPOLE = "VLMRM/CartPole-v1"


class Red(vlmrm_gym.RewardModel):
    """Its feature is the mean of the red channel."""

    def encode(self, frames):
        return frames[..., 0].mean((1, 2))[:, None]

    def head(self, features):
        return features[:, 0, 0]


class Steps(vlmrm_gym.RewardModel):
    """How far the newest frame of a clip of two is from the one before."""

    clip_length = 2

    def encode(self, frames):
        return np.abs(np.diff(frames.astype(float), axis=1)).mean((1, 2, 3, 4))[:, None]


class Joint(vlmrm_gym.RewardModel):
    """Sees all views at once."""

    encodes = "views"

    def encode(self, frames):
        assert frames.ndim == 5
        return frames.min(axis=1)[..., 0].mean((1, 2))[:, None]


def red(frames, scale=1.0):
    return scale * frames[..., 0].mean((1, 2))


@pytest.fixture
def level(monkeypatch):
    """The kind of `own_kind`, registered by one line."""
    monkeypatch.setitem(KINDS, "level", Level)


@pytest.fixture
def pictures(tmp_path):
    """Pictures whose red is 0, 50 and 200."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, value in enumerate((0, 50, 200)):
        Image.new("RGB", (8, 6), (value, 10, 10)).save(folder / f"{number}.png")
    return folder


def scores(folder):
    with (folder / "rewards.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    return {name: [float(row[number]) for row in rows[1:]] for number, name in enumerate(rows[0]) if number > 2}


def test_an_id_comes_first_and_flags_have_one_value_or_several():
    for arguments, id, values in (
        (["ID", "--alpha", "0", "0.5", "1"], "ID", {"alpha": (0, 0.5, 1)}),
        (["ID", "--alpha", "0", "--alpha", "0.5"], "ID", {"alpha": (0, 0.5)}),
        (["--overwrite", "ID", "--camera", "side", "paper"], "ID", {"camera": ("side", "paper"), "overwrite": True}),
        (["--seed", "3", "ID", "--prompt", "-1", "a b"], "ID", {"prompt": ("-1", "a b"), "seed": 3}),
        (["m:f", "--env-kwargs", "{a: 1}", "--alpha", "0", "1"], "m:f", {"env_kwargs": {"a": 1}, "alpha": (0, 1)}),
        (["ID", "--batch-size", "1e3", "--seed", "2e0"], "ID", {"batch_size": 1_000, "seed": 2}),
        (["ID"], "ID", {"alpha": (0.0,), "model": (None,), "prompt": ()}),
    ):
        command = parse(Check, "check", arguments)
        assert command.id == id
        assert {name: getattr(command, name) for name in values} == values
    assert parse(Dataset, "dataset", ["--camera", "front-side", CARTPOLE, "--out", "x"]).camera == "front-side"


def test_the_overview_has_one_line_a_command(capsys):
    main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    for name, text in COMMANDS.items():
        assert [line for line in lines if line.split()[:1] == [name]] == [f"  {name:10}{text}"]
    main([])
    assert capsys.readouterr().out.splitlines() == lines
    main(["--version"])
    assert capsys.readouterr().out == f"vlmrm-gym {vlmrm_gym.__version__}\n"


def test_usage_errors_come_before_slow_imports(tmp_path):
    """In one process: what one command loads, the next would not load again."""
    program = (
        "import json, sys\nfrom vlmrm_gym.tools.cli import main\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    try:\n        main(arguments)\n    except SystemExit as error:\n        assert error.code == 2\n"
        "print('loaded', *{name.partition('.')[0] for name in sys.modules})"
    )
    refused = {
        "Did you mean 'check'?": ["chekc"],
        "high": ["check", CARTPOLE, "--alpha", "high"],
        "must be an integer. Received '1.5'": ["check", CARTPOLE, "--seed", "1.5"],
        "`alpha` must be a number from 0 to 1": ["check", CARTPOLE, "--alpha", "2"],
        "Did you mean 'VLMRM/CartPole-v1'?": ["check", "VLMRM/CartPole-v2"],
        "There is no file or folder no.mp4": ["score", "no.mp4", "--prompt", "a"],
        "`out` must be given": ["dataset", CARTPOLE],
        "The ID must be one that `vlmrm_gym.tasks.register` knows": ["tasks", "CartPole-v1"],
    }
    arguments = json.dumps([*refused.values(), ["--help"]])
    done = subprocess.run([sys.executable, "-c", program, arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for message in refused:
        assert message in done.stderr
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "gymnasium" in loaded
    assert not loaded & {"torch", "open_clip", "stable_baselines3", "mujoco", "minari", "matplotlib", "ray"}


def test_a_registered_kind_is_named_in_commands_and_their_help(level, tmp_path, capsys):
    flags = ["--reward", "level", "--reward-kwargs", "{scale: 2}"]
    main(["dataset", CARTPOLE, *flags, "--out", str(tmp_path / "data"), "--episodes", "1", "--steps", "3"])
    (episode,) = minari.MinariDataset(tmp_path / "data" / "data")
    np.testing.assert_array_equal(episode.rewards, [510] * 3)
    (kept,) = json.loads((tmp_path / "data" / "settings.json").read_text())["rewards"]
    assert kept == {"kind": "level", "scale": 2}
    capsys.readouterr()
    main(["train", CARTPOLE, *flags, "--dry-run"])
    assert "level, scored by the process that trains" in capsys.readouterr().out
    for command in ("check", "score", "dataset", "train"):
        with pytest.raises(SystemExit):
            main([command, "--help-all" if command == "train" else "--help"])
        assert "level(scale)" in capsys.readouterr().out.replace("\n", " ")


def test_rewards_are_named_by_module_file_or_value(level, pictures, tmp_path):
    named = score(pictures, reward=f"{__name__}:red", reward_kwargs={"scale": 3}, out=tmp_path / "1", video=False)
    assert scores(named) == {f"{__name__}:red": [0, 150, 600]}
    file = tmp_path / "reward.json"
    file.write_text(json.dumps(to_mapping(Level(scale=4.0))))
    filed = score(pictures, reward=[str(file), f"{__name__}:Red", red], out=tmp_path / "2", video=False)
    assert scores(filed) == {str(file): [0, 200, 800], f"{__name__}:Red": [0, 50, 200], "red": [0, 50, 200]}
    clips = score(pictures, reward=f"{__name__}:Steps", out=tmp_path / "3", video=False)
    assert scores(clips) == {f"{__name__}:Steps": pytest.approx([0, 50 / 3, 150 / 3])}


def test_a_check_looks_at_the_values_of_any_reward(tmp_path):
    """Also of one that sees all views at once, and of one with an encoder and a head."""
    rewards = [f"{__name__}:{name}" for name in ("red", "Joint", "Red")]
    with few_states(10, 40):
        report = check(CARTPOLE, reward=rewards, out=tmp_path / "check")
    assert {row.candidate.name for row in report.table} == set(rewards)
    assert report.command.startswith(f"vlmrm_gym.check('{CARTPOLE}', reward=['{rewards[0]}', ")
    first, *others = (row.measures.auc.value for row in report.table)
    assert others == [first, first]
    (curve,) = report.landscapes[0].curves.values()
    env = make_base_env(TASKS[0], 10)
    with closing(env), closing(StateView(env)) as view:
        env.reset()
        states = next(path for path in TASKS[0].make_states().paths() if path.line is None).states
        np.testing.assert_allclose(curve, red(view.draw(states)), rtol=1e-5)
    with pytest.raises(InputError, match="`reward` must be of single frames"):
        check(CARTPOLE, reward=f"{__name__}:Steps", out=tmp_path / "clips")


HELPS = [*(f"{name} --help" for name in COMMANDS if name != "program"), "train --help-all", "fit --videos --help"]


@pytest.mark.parametrize("words", [*HELPS, "program verify --help", "program write --help"])
def test_help_names_values_as_a_person_writes_them_and_a_default_once(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "110")
    with pytest.raises(SystemExit):
        main(words.split())
    shown = capsys.readouterr().out
    assert not re.search(r"\{None|None\}|STR|default: (None|False)|default: *\)", shown)
    for entry in re.split(r"^(?:│| ) +(?=--|\[?[A-Z]+)", shown, flags=re.M)[1:]:
        assert len(re.findall(r"\(default|Default:", entry)) <= 1, entry


def test_none_takes_a_value_back_and_errors_name_values_as_help_does(capsys):
    assert parse(Check, "check", ["ID", "--resize-mode", "None", "--batch-size", "None"]).batch_size is None
    for flags, message in (
        (["--resize-mode", "squish"], "Expected one of ('squash', 'shortest', 'longest', 'None')"),
        (["--batch-size", "x"], "--batch-size: must be an integer. Received 'x'. "),
        (["--promt", "x"], "Perhaps you meant: --prompt TEXT ... what"),
    ):
        with pytest.raises(SystemExit):
            parse(Check, "check", flags)
        assert message in " ".join(re.sub("[│─╭╮╰╯]", " ", capsys.readouterr().err).split())


def test_the_help_of_train_is_short_and_its_flags_exist(capsys):
    """At most 25 flags; one that is short for another is the same key."""
    from vlmrm_gym.tools.cli.train import configure

    with pytest.raises(SystemExit) as ended:
        main(["train", "--help"])
    assert not ended.value.code
    shown = capsys.readouterr().out
    flags = re.findall(r"^ +(--[a-z-]+)", shown, re.M)
    assert len(flags) <= 25
    assert {"--prompt", "--total-timesteps", "--seed", "--resume", "--help-all"} <= set(flags)
    with pytest.raises(SystemExit):
        main(["train", "--help-all"])
    everything = capsys.readouterr().out
    assert all(flag in everything for flag in set(flags) - {"--help-all"})
    config = configure(None, ["--env-name", CARTPOLE, "--total-timesteps", "9000", "--algorithm", "PPO"])
    assert (config.rl.n_steps, config.rl.algorithm) == (9000, "PPO")
