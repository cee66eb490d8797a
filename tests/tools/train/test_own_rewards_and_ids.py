"""Trainings on rewards and environments that are not ours."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from commands import refused, write
from test_training import Crash, crash_at

from vlmrm_gym import CLIP
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.train.algorithms import with_defaults
from vlmrm_gym.tools.train.config import Config, RewardConfig, RLConfig
from vlmrm_gym.tools.train.config_file import ALIASES
from vlmrm_gym.tools.train.run_folder import RunFolder

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:The bundled model does not know"),
]

FLAGS = ["--rl.n-steps", "60", "--rl.n-envs-per-worker", "2", "--rl.episode-length", "10", "--logging.video-freq", "0"]
FLAGS += ["--rl.gradient-steps", "1", "--rl.batch-size", "4", "--rl.policy-kwargs", "{net_arch: [4]}"]


def train(tmp_path, *arguments, flags=FLAGS):
    main(["train", *map(str, arguments), *flags, "--base-path", str(tmp_path), "--run-name", "run"])
    return RunFolder(tmp_path / "run")


def test_the_keys_of_a_file_are_the_fields_of_clip_and_help_names_those_of_the_algorithm(capsys):
    """In their order, with their defaults."""
    assert list(RewardConfig().settings()) == [one.name for one in fields(CLIP) if one.init]
    assert CLIP(prompt="a").settings() == {**RewardConfig().settings(), "prompt": "a"}
    with pytest.raises(SystemExit):
        main(["train", "--help-all"])
    shown = capsys.readouterr().out
    assert "--rl.learning-rate 3e-4" in shown
    assert "--rl.options" not in shown


def test_words_of_the_published_format_and_new_ones_cannot_both_be_given_and_errors_name_them(tmp_path, capsys):
    for word, key in ALIASES.items():
        value = "{distance: 3}" if key == "camera" else "tiny"
        text = f"env_name: VLMRM/Humanoid-stand-v0\nreward:\n  {word}: {value}\n  {key}: {value}\n"
        output = refused(capsys, "train", write(text, tmp_path))
        assert f"  line 4: `reward.{key}` is given twice: as `reward.{word}` in line 3. Leave one.\n" in output
    file = write("env_name: CartPole-v1\nreward:\n  pretrained_model: 3\n", tmp_path)
    assert "\n  line 3: `reward.pretrained_model` must be" in refused(capsys, "train", file)
    output = refused(capsys, "train", file, "--model=other", "--alpha", "2")
    assert output.splitlines()[1:] == ["  `reward.alpha` must be a number from 0 to 1. Received 2.0."]


def test_a_function_of_ones_own_trains_and_evaluates(tmp_path, capsys):
    text = "env_name: VLMRM/CartPole-v1\nreward: {name: 'own_things:Brightness', kwargs: {scale: 2.5}, num_workers: 1}"
    file = write(text, tmp_path)
    output = refused(capsys, "train", file)
    assert "line 2: `reward.name` names code that would be run. Received 'own_things:Brightness'" in output
    assert "--trust-code" in output
    folder = train(tmp_path, file, "--trust-code")
    rows = folder.metrics()
    assert rows
    assert all(row["vlm_return"] == 25.0 for row in rows)  # 10 steps
    for command in (["evaluate", folder.path, "--no-video"], ["train", "--resume", folder.path]):
        assert "pass --trust-code" in refused(capsys, *command)
    main(["evaluate", str(folder.path), "--no-video", "--episodes", "1", "--trust-code"])
    assert json.loads((folder.path / "evaluation.json").read_text())["vlm_return"] == 25.0
    main(["train", "--resume", str(folder.path), "--trust-code", "--rl.n-steps", "80"])
    assert max(folder.checkpoints) == 80


def test_a_module_in_the_current_folder_can_be_named(tmp_path):
    """The installed program, unlike `python -m`, does not have that folder on its path."""
    (tmp_path / "my_rewards.py").write_text("")
    command = [Path(sys.executable).with_name("vlmrm-gym"), "train", "--env-name", "VLMRM/CartPole-v1"]
    command += ["--reward.name", "my_rewards:Upright"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "has no attribute 'Upright'" in " ".join(done.stderr.split())) == (2, True)


@pytest.mark.parametrize(
    ("id", "algorithm", "kwargs"),
    [
        ("Ant-v5", "SAC", []),
        ("own_things:Short", "DQN", ["{keys: true}"]),  # a class, as any function; observations that are dictionaries
    ],
)
def test_any_id_that_renders_is_trained_on(id, algorithm, kwargs, tmp_path, capsys):
    """Success is not known there, and is not reported."""
    arguments = ["--env-name", id, "--prompt", "something", "--reward.pretrained_model=tiny"]
    folder = train(tmp_path, *arguments, *(["--env-kwargs", *kwargs] if kwargs else []))
    written = folder.config_file.read_text()
    assert "  model: tiny\n" in written
    assert f"  algorithm: {algorithm}\n" in written
    assert ("  normalize_observations: true\n" in written) == (algorithm == "SAC")
    rows = folder.metrics()
    assert list(rows[0]) == ["step", "seconds", "episodes", "vlm_return", "task_return"]
    assert np.isfinite([row["vlm_return"] for row in rows]).all()
    capsys.readouterr()
    main(["evaluate", str(folder.path), "--episodes", "2", *(["--trust-code"] if ":" in id else [])])
    assert "success" not in capsys.readouterr().out
    assert "success" not in json.loads((folder.path / "evaluation.json").read_text())
    assert (folder.path / "evaluation.mp4").exists()


def test_settings_follow_from_spaces_and_time_limit():
    config = with_defaults(Config(env_name="Ant-v5", reward=RewardConfig(prompt=["an ant robot on its back"])))
    assert (config.rl.algorithm, config.rl.policy_name, config.rl.normalize_observations) == ("SAC", "MlpPolicy", True)
    assert config.rl.episode_length == 1_000  # Gymnasium's
    assert config.rl.learning_starts >= 1_000 * config.num_envs
    config = with_defaults(
        Config(env_name="own_things:Own/Short-v0", env_kwargs={"keys": True}, reward=RewardConfig(prompt=["a"]))
    )
    assert (config.rl.algorithm, config.rl.policy_name) == ("DQN", "MultiInputPolicy")
    overlap = Config(env_name="Pendulum-v1", reward=RewardConfig(prompt=["a"], overlap=True), rl=RLConfig())
    assert with_defaults(overlap).rl.learning_starts >= 2 * 200 * with_defaults(overlap).num_envs


def test_a_run_whose_episodes_end_at_different_times_is_resumed(tmp_path, monkeypatch):
    """Episodes are cut at a checkpoint, and nothing is lost: every transition gets its reward."""
    arguments = ["--env-name", "own_things:Own/Short-v0", "--prompt", "a", "--model", "tiny"]
    arguments += ["--logging.checkpoint-freq", "22"]
    with monkeypatch.context() as patch:
        crash_at(patch, 55)
        with pytest.raises(Crash):
            train(tmp_path, *arguments)
    folder = RunFolder(tmp_path / "run")
    reached = max(folder.checkpoints)
    assert 0 < reached < 55
    main(["train", "--resume", str(folder.path), "--trust-code"])
    assert max(folder.checkpoints) == 60
    with np.load(folder.checkpoints[60] / "replay_buffer.npz", allow_pickle=False) as buffer:
        assert (len(buffer["rewards"]), len(buffer["pending_step_index"])) == (60, 0)
        assert np.isfinite(buffer["rewards"]).all()
    rows = folder.metrics()
    assert rows[-1]["step"] > reached
