"""The command line: what users type, and what they are told."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import imageio.v3 as iio
import pytest

from vlmrm_gym.cli import main
from vlmrm_gym.tasks import TASKS
from vlmrm_gym.training.run_folder import RunFolder

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

CONFIG = """\
env_name: CartPole-v1
seed: 3
reward:
  target_prompts: [pole vertically upright on top of the cart]
rl:
  n_steps: 600
  n_envs_per_worker: 2
  episode_length: 25
  learning_starts: 60
  train_freq: 5
  gradient_steps: 1
  batch_size: 8
logging:
  checkpoint_freq: 100
  video_freq: 0
"""


@pytest.fixture
def config(tmp_path):
    """A file that trains for a few seconds."""
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG + f"base_path: {tmp_path / 'runs'}\n")
    return path


def begin(*arguments):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "vlmrm_gym.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition, process):
    until = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.02)


def learned(folder):
    rows = folder.metrics()
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_tracking_sends_what_tensorboard_is_told(config, tmp_path):
    environment = {**os.environ, "WANDB_MODE": "offline"}
    command = [sys.executable, "-m", "vlmrm_gym.cli", "train", str(config), "--run-name", "tracked", "--track"]
    done = subprocess.run([*command, "--rl.n-steps", "200"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (sent,) = (tmp_path / "runs" / "tracked" / "wandb").glob("offline-run-*/run-*.wandb")
    for told in (b"rollout/vlm_return", b"rollout/success", b"rl.learning_starts", b"CartPole-v1"):
        assert told in sent.read_bytes()


def test_tracking_without_an_account_ends_before_anything_begins(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(SystemExit, match="2"):
        main(["train", str(config), "--run-name", "tracked", "--track"])
    assert "`track` is on, and Weights and Biases cannot begin: No API key" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "tracked").exists()


def test_a_run_that_was_killed_goes_on(config, tmp_path, capsys):
    """SIGKILL, as of a machine that is switched off; the same file again, and all is as in the unbroken run."""
    main(["train", str(config), "--run-name", "unbroken"])
    assert "vlmrm-gym evaluate" in capsys.readouterr().out
    process = begin("train", config, "--run-name", "killed")
    folder = RunFolder(tmp_path / "runs" / "killed")
    wait_for(lambda: len(folder.checkpoints) >= 2, process)
    process.kill()
    process.communicate()
    reached = max(folder.checkpoints)
    assert reached < 600
    main(["train", "--resume", str(folder.path)])
    assert learned(folder) == learned(RunFolder(tmp_path / "runs" / "unbroken"))
    starts = [start["step"] for start in json.loads((folder.path / "versions.json").read_text())]
    assert starts[0] == 0
    assert starts[1] in folder.checkpoints


def test_ctrl_c_says_how_to_go_on(config, tmp_path):
    process = begin("train", config, "--run-name", "run", "--rl.n-steps", 100_000)
    folder = RunFolder(tmp_path / "runs" / "run")
    wait_for(lambda: len(folder.metrics()) >= 2, process)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    reached = max(folder.checkpoints)
    assert f"Go on from step {reached:,} by: vlmrm-gym train --resume {folder.path}" in told
    assert "Traceback" not in told
    assert learned(folder)[-1]["step"] <= reached


def test_ctrl_c_at_any_time_is_no_traceback(config, tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    for command, interrupted in (("train", "vlmrm_gym.cli._configure"), ("tasks", "vlmrm_gym.cli._list_tasks")):
        monkeypatch.setattr(interrupted, interrupt)
        with pytest.raises(SystemExit) as raised:
            main([command])
        assert raised.value.code == 130
        assert capsys.readouterr().err == "Interrupted.\n"


def test_a_disk_that_cannot_be_written_to_is_one_sentence(config, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "runs")

    monkeypatch.setattr("vlmrm_gym.training.run.write_whole", refuse)
    with pytest.raises(SystemExit) as raised:
        main(["train", str(config)])
    assert raised.value.code == 1
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == "What was to be written could not be: [Errno 30] Read-only file system: 'runs'"


def test_a_file_is_enough_to_go_on_for_longer(config, tmp_path):
    main(["train", str(config), "--run-name", "run", "--rl.n-steps", "100"])
    main(["train", str(config), "--resume", str(tmp_path / "runs" / "run"), "--rl.n-steps", "150"])
    assert max(RunFolder(tmp_path / "runs" / "run").checkpoints) == 150


def test_weights_are_kept_where_the_configuration_says(config, tmp_path):
    """In a process of its own: Hugging Face reads this once, when it is imported."""
    program = (
        "import sys; from vlmrm_gym.cli import main; main(sys.argv[1:]); "
        "import huggingface_hub.constants as c; print(c.HF_HUB_CACHE)"
    )
    config.write_text(config.read_text().replace("reward:", f"reward:\n  cache_dir: {tmp_path / 'cache'}"))
    command = [sys.executable, "-c", program, "train", str(config), "--rl.n-steps", "100"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == str(tmp_path / "cache"), done.stderr


def test_flags_have_the_last_word_and_are_enough(config, tmp_path):
    main(["train", str(config), "--run-name", "a", "--seed", "9", "--rl.n-steps", "100", "--reward.alpha", "0.5"])
    written = (tmp_path / "runs" / "a" / "config.yaml").read_text()
    assert "seed: 9\n" in written
    assert "  n_steps: 100\n" in written
    assert "  alpha: 0.5\n" in written
    flags = ["--env-name", "VLMRM/CartPole-v1", "--base-path", str(tmp_path / "runs"), "--run-name", "b"]
    flags += ["--rl.n-steps", "100", "--rl.episode-length", "10", "--rl.policy-kwargs", "{net_arch: [8]}"]
    main(["train", *flags, "--logging.video-freq", "0"])
    written = (tmp_path / "runs" / "b" / "config.yaml").read_text()
    assert "    - 8\n" in written
    assert "  learning_starts: 50\n" in written  # not the 1,600 of trainings of the usual length
    main(["evaluate", str(tmp_path / "runs" / "b"), "--episodes", "1", "--no-video"])


def test_evaluate_says_success_and_returns_and_films(config, tmp_path, capsys):
    main(["train", str(config), "--run-name", "run"])
    folder = tmp_path / "runs" / "run"
    capsys.readouterr()
    main(["evaluate", str(folder), "--episodes", "3", "--policy", "200"])
    told = capsys.readouterr().out
    result = json.loads((folder / "evaluation.json").read_text())
    assert result["policy"] == "checkpoints/0000000200/model.zip"
    assert result["episodes"] == 3
    assert 0 <= result["success_share"] <= 1
    assert f"{result['scored_return']:.2f} ± {result['scored_return_std']:.2f}" in told
    assert iio.imread(folder / "evaluation.mp4").shape == (25, 472, 600, 3)


def test_tasks_lists_ids_prompts_and_pictures(tmp_path, capsys):
    main(["tasks", "--pictures", str(tmp_path)])
    told = capsys.readouterr().out
    assert "steps" in told
    for task in TASKS:
        assert task.id in told
        assert (task.prompt or "(yours)") in told
        picture = iio.imread(tmp_path / f"{task.id.removeprefix('VLMRM/')}.png")
        height, width = (480, 480) if task.world == "Humanoid" else (400, 600)
        assert picture.shape == (height, width * (1 if task.prompt is None else 2), 3)
        assert picture.std() > 10
        assert str(tmp_path / f"{task.id.removeprefix('VLMRM/')}.png") in told


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as raised:
        main(list(map(str, arguments)))
    assert raised.value.code == 2
    return capsys.readouterr().err


def test_bad_input_is_refused_before_anything_is_made(config, tmp_path, capsys):
    config.write_text(config.read_text().replace("seed: 3", "sead: 3").replace("n_steps: 600", "n_steps: -1"))
    told = refused(capsys, "train", config, "--rl.gamma", "7", "--rl.algorithm", "SAC")
    assert told.splitlines()[0] == f"4 problems in {config} and the flags:"
    assert "line 2: `sead` is not known. Did you mean `seed`?" in told
    assert "line 6: `rl.n_steps` must be greater than or equal to 1. Received -1." in told
    assert "\n  `rl.gamma` must be less than or equal to 1. Received 7" in told
    assert "\n  `rl.algorithm` must act in discrete spaces" in told
    assert not (tmp_path / "runs").exists()
    told = refused(capsys, "train", config, "--rl.n-steps", "1e3")  # flags have the last word
    assert told.splitlines()[0] == f"1 problem in {config} and the flags:"
    assert "`env_name` is missing" in refused(capsys, "train")
    told = refused(capsys, "train", "--reward.target-prompts", "a pole", config)
    assert f"'{config}' was taken for a prompt: name the configuration file first." in told
    assert "Did you mean 'VLMRM/CartPole-v1'?" in refused(capsys, "train", "--env-name", "VLMRM/CartPol-v1")
    assert "cannot be read" in refused(capsys, "train", tmp_path / "none.yaml")
    assert "--rl.n-stepz" in refused(capsys, "train", "--rl.n-stepz", "3")


def test_folders_that_do_not_fit_are_refused(config, tmp_path, capsys):
    main(["train", str(config), "--run-name", "run", "--rl.n-steps", "100"])
    folder = tmp_path / "runs" / "run"
    assert "exists already. Go on with that run by --resume" in refused(capsys, "train", config, "--run-name", "run")
    assert "is not the folder of a run" in refused(capsys, "train", "--resume", tmp_path / "runs")
    assert "is not the folder of a run" in refused(capsys, "evaluate", tmp_path / "runs")
    assert "`seed` is 4, was 3" in refused(capsys, "train", "--resume", folder, "--seed", 4)
    config.write_text(config.read_text().replace("batch_size: 8", "batch_size: 16"))
    assert "`rl.batch_size` is 16, was 8" in refused(capsys, "train", config, "--resume", folder)
    assert "`episodes` must be at least 1" in refused(capsys, "evaluate", folder, "--episodes", "0")
    assert "has no policy '77'" in refused(capsys, "evaluate", folder, "--policy", "77")
    assert "has no policy '0'" in refused(capsys, "evaluate", folder, "--policy", "0")
    assert "`seed` must be at least 0" in refused(capsys, "evaluate", folder, "--seed", "-1")
    (next(iter(RunFolder(folder).checkpoints.values())) / "model.zip").write_bytes(b"PK")
    assert "is no DQN of this run, or damaged" in refused(capsys, "evaluate", folder, "--policy", "last")
    (next(iter(RunFolder(folder).checkpoints.values())) / "state.pkl").write_bytes(b"")
    assert "is damaged: model.zip, state.pkl" in refused(capsys, "train", "--resume", folder)


@pytest.mark.parametrize("command", [[], ["train"], ["evaluate"], ["tasks"]])
def test_help_teaches(command, capsys):
    with pytest.raises(SystemExit) as raised:
        main([*command, "--help"])
    assert raised.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    examples = {"train": "--rl.n-steps", "evaluate": "--episodes 20", "tasks": "--pictures pictures"}
    assert all(example in told for example in ([examples[command[0]]] if command else examples))


def test_the_command_is_installed():
    script = Path(sys.executable).with_name("vlmrm-gym")
    told = subprocess.run([script, "tasks"], capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
    assert told.returncode == 0
    assert "VLMRM/Humanoid-kneel-v0" in told.stdout
