"""The command line."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import imageio.v3 as iio
import pytest
from backends import alive, children, wait_until
from commands import refused

import vlmrm_gym
from vlmrm_gym.tasks import TASKS
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.train.run_folder import RunFolder

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

CONFIG = """\
env_name: CartPole-v1
seed: 3
reward:
  target_prompts: [pole vertically upright on top of the cart]
rl: {n_envs_per_worker: 2, episode_length: 25, learning_starts: 60, train_freq: 5, gradient_steps: 1, batch_size: 8,
  n_steps: 600}
logging: {checkpoint_freq: 100, video_freq: 0}
"""


@pytest.fixture
def config(tmp_path):
    """A file that trains for a few seconds."""
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG + f"base_path: {tmp_path / 'runs'}\n")
    return path


def begin(*arguments):
    """Start the command in a new process."""
    command = [sys.executable, "-m", "vlmrm_gym", *map(str, arguments)]
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


@pytest.mark.slow
def test_tracking_mirrors_tensorboard(config, tmp_path):
    environment = {**os.environ, "WANDB_MODE": "offline"}
    command = [sys.executable, "-m", "vlmrm_gym", "train", str(config), "--run-name", "tracked", "--track"]
    done = subprocess.run([*command, "--rl.n-steps", "200"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (sent,) = (tmp_path / "runs" / "tracked" / "wandb").glob("offline-run-*/run-*.wandb")
    for text in (b"rollout/vlm_return", b"rollout/success", b"rl.learning_starts", b"CartPole-v1"):
        assert text in sent.read_bytes()


def test_tracking_without_an_account_fails_before_training(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(SystemExit, match="2"):
        main(["train", str(config), "--run-name", "tracked", "--track"])
    assert "`track` is on, and Weights and Biases cannot begin: No API key" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "tracked").exists()


@pytest.mark.slow
def test_resuming_a_killed_run(config, tmp_path, capsys):
    """After SIGKILL, resuming gives the same result as an uninterrupted run."""
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


def test_ctrl_c_prints_how_to_resume(config, tmp_path, monkeypatch, capsys):
    append, written = RunFolder.append_metrics, []

    def interrupted(self, rows):
        append(self, rows)
        before = len(written)
        written.extend(rows)
        if before < 2 <= len(written):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RunFolder, "append_metrics", interrupted)
    with pytest.raises(SystemExit) as raised:
        main(["train", str(config), "--run-name", "run", "--rl.n-steps", "100000"])
    assert raised.value.code == 130
    folder = RunFolder(tmp_path / "runs" / "run")
    reached = max(folder.checkpoints)
    assert f"To resume from step {reached:,}: vlmrm-gym train --resume {folder.path}" in capsys.readouterr().err
    assert learned(folder)[-1]["step"] <= reached < 100_000


def test_a_signal_before_the_training_prints_one_sentence(config, tmp_path, monkeypatch, capsys):
    usual = signal.getsignal(signal.SIGTERM)
    for number, code, interrupted, message in (
        (signal.SIGINT, 130, "tools.cli.train.read_settings", "Interrupted."),
        (signal.SIGTERM, 143, "tools.train.run.make_envs", "Stopped before the training began."),
    ):

        def stop(*_, number=number, **__):
            os.kill(os.getpid(), number)
            time.sleep(10)

        with monkeypatch.context() as patch:
            patch.setattr(f"vlmrm_gym.{interrupted}", stop)
            with pytest.raises(SystemExit) as raised:
                main(["train", str(config)])
        assert raised.value.code == code
        assert capsys.readouterr().err == f"{message}\n"
        assert signal.getsignal(signal.SIGTERM) == usual
        assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "moment"),
    [("SIGINT", "training"), ("SIGTERM", "loading"), ("SIGKILL", "training")],
)
def test_no_worker_outlives_a_training_that_gets_a_signal(name, moment, config, tmp_path):
    """Contract 8: within 5 s, but for the time that writing a checkpoint takes; while the workers load, too."""
    arguments = ("--run-name", "run", "--rl.n-steps", 100_000, "--rl.learning-starts", 120, "--reward.num-workers", 2)
    process, folder = begin("train", config, *arguments), RunFolder(tmp_path / "runs" / "run")
    try:
        assert wait_until(lambda: process.poll() is not None or len(children(process.pid)) >= 2, 120)
        if moment == "training":
            assert wait_until(lambda: process.poll() is not None or folder.metrics(), 120)
        assert process.poll() is None, process.communicate()
        workers = children(process.pid)
        process.send_signal(getattr(signal, name))
        limit = 5 if name == "SIGKILL" or moment == "loading" else 20
        assert wait_until(lambda: not any(map(alive, workers)), limit)
        _, output = process.communicate(timeout=30)
    finally:
        process.kill()
    number = getattr(signal, name)
    assert process.returncode in (-number, 128 + number)  # a shell shows both as the latter
    assert "Traceback" not in output


@pytest.mark.slow
def test_models_are_looked_up_after_cache_dir_is_set(config, tmp_path):
    """Only the name is checked; nothing is downloaded."""
    program = (
        "import sys; from pathlib import Path; from vlmrm_gym.tools.cli.train import configure; "
        "configure(Path(sys.argv[1]), []); import open_clip, huggingface_hub.constants as c; print(c.HF_HUB_CACHE)"
    )
    reward = f"reward:\n  cache_dir: {tmp_path / 'cache'}\n  pretrained_model: ViT-B-32/openai"
    config.write_text(config.read_text().replace("reward:", reward))
    done = subprocess.run([sys.executable, "-c", program, str(config)], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == str(tmp_path / "cache"), done.stderr


def test_flags_override_files_and_suffice_alone_and_a_run_is_evaluated(config, tmp_path, capsys):
    config.write_text(config.read_text().replace("n_steps: 600", "n_steps: 200"))
    main(["train", str(config), "--run-name", "a", "--seed", "9", "--rl.n-steps", "100", "--reward.alpha", "0.5"])
    written = (tmp_path / "runs" / "a" / "config.yaml").read_text()
    assert "seed: 9\n" in written
    assert "  n_steps: 100\n" in written
    assert "  alpha: 0.5\n" in written
    main(["train", str(config), "--resume", str(tmp_path / "runs" / "a"), "--seed", "9", "--reward.alpha", "0.5"])
    assert max(RunFolder(tmp_path / "runs" / "a").checkpoints) == 200  # a run can be extended by a file
    capsys.readouterr()
    flags = ["VLMRM/CartPole-v1", "--base-path", str(tmp_path / "runs"), "--run-name", "b", "--seed", "7"]
    flags += ["--rl.n-steps", "100", "--rl.episode-length", "10", "--rl.policy-kwargs", "{net_arch: [8]}"]
    main(["train", *flags, "--logging.video-freq", "0", "--dry-run"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(":", 1)[1].strip() == "4 x VLMRM/CartPole-v1, episodes of 10 steps"
    assert lines[1].endswith("seed 7")
    assert not (tmp_path / "runs" / "b").exists()
    main(["train", *flags, "--logging.video-freq", "0"])
    written = (tmp_path / "runs" / "b" / "config.yaml").read_text()
    assert "    - 8\n" in written
    assert "  learning_starts: 50\n" in written  # not 1,600, as in trainings of default length
    capsys.readouterr()
    main(["evaluate", str(folder := tmp_path / "runs" / "b"), "--episodes", "3", "--policy", "100"])
    output = capsys.readouterr().out
    result = json.loads((folder / "evaluation.json").read_text())
    assert result["policy"] == "checkpoints/0000000100/model.zip"
    assert result["episodes"] == 3
    assert 0 <= result["success_fraction"] <= 1
    assert f"{result['vlm_return']:.2f} ± {result['vlm_return_std']:.2f}" in output
    assert iio.imread(folder / "evaluation.mp4").shape == (10, 472, 600, 3)


def test_a_command_runs_in_any_thread(capsys):
    """Signals are handled in the main thread alone."""
    with ThreadPoolExecutor() as pool:
        pool.submit(main, ["tasks"]).result()
    assert TASKS[0].id in capsys.readouterr().out


@pytest.mark.slow
def test_tasks_lists_ids_prompts_and_pictures(tmp_path, capsys):
    main(["tasks", "--pictures", str(tmp_path)])
    output = capsys.readouterr().out
    assert "steps" in output
    for task in TASKS:
        assert task.id in output
        assert (task.prompt or "(yours)") in output
        picture = iio.imread(tmp_path / f"{task.id.removeprefix('VLMRM/')}.png")
        height, width = (480, 480) if "Humanoid" in task.id else (400, 600)
        assert picture.shape == (height, width * (1 if task.prompt is None else 2), 3)
        assert picture.std() > 10
        assert str(tmp_path / f"{task.id.removeprefix('VLMRM/')}.png") in output


def test_a_camera_of_pictures_that_is_no_yaml_is_refused_before_anything_is_made(tmp_path, capsys):
    output = refused(capsys, "tasks", "--pictures", tmp_path / "pictures", "--camera", "{azimuth: 90")
    assert "Error parsing --camera: line 1: this is not valid YAML: expected" in " ".join(output.split())
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_refused_before_training(config, tmp_path, capsys):
    config.write_text(config.read_text().replace("seed: 3", "sead: 3").replace("n_steps: 600", "n_steps: -1"))
    output = refused(capsys, "train", config, "--rl.gamma", "high", "--rl.algorithm", "SAC")
    assert output.splitlines()[0] == f"3 problems in {config} and the flags:"
    assert "line 2: `sead` is not known. Did you mean `seed`?" in output
    assert "line 6: `rl.n_steps` must be an integer of at least 1. Received -1." in output
    assert "\n  `rl.gamma` must be a valid number. Received 'high'." in output
    assert not (tmp_path / "runs").exists()
    output = refused(capsys, "train", config, "--rl.n-steps", "1e3")  # flags override the file
    assert output.splitlines()[0] == f"1 problem in {config} and the flags:"
    assert "Did you mean 'VLMRM/CartPole-v1'?" in refused(capsys, "train", "--env-name", "VLMRM/CartPol-v1")
    output = refused(capsys, "train", "--env-name", "CartPole-v1", "--rl.n-steps", "9" * 5_000)
    assert "`rl.n_steps` must be an integer of at least 1. Received " in output
    assert len(output) < 300
    output = refused(capsys, "train", "--env-name", "CartPole-v1", "--rl.policy-kwargs", "[" * 200)
    assert "`rl.policy_kwargs` must be a valid dictionary. Received '" in output  # the limits of files
    assert len(output) < 500


def test_unsuitable_folders_are_refused(config, cart_pole_run, tmp_path, capsys):
    folder = cart_pole_run
    assert "cannot be made" in refused(capsys, "train", config, "--base-path", config)
    assert "exists already. Resume that run by --resume" in refused(capsys, "train", config, "--run-name", folder.name)
    assert "is not the folder of a run" in refused(capsys, "train", "--resume", tmp_path / "runs")
    assert "is not the folder of a run" in refused(capsys, "evaluate", tmp_path / "runs")
    assert "`seed` is 4, was 0" in refused(capsys, "train", "--resume", folder, "--seed", 4)
    assert "`rl.batch_size` is 8, was " in refused(capsys, "train", config, "--resume", folder)
    assert "`episodes` must be from 1 to 1000000. Received 0." in refused(capsys, "evaluate", folder, "--episodes", "0")
    assert "has no policy '77'" in refused(capsys, "evaluate", folder, "--policy", "77")
    assert "`seed` must be from 0 to 4294967295. Received -1." in refused(capsys, "evaluate", folder, "--seed", "-1")


def test_the_command_is_installed():
    script = Path(sys.executable).with_name("vlmrm-gym")
    output = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert output.stdout == f"vlmrm-gym {vlmrm_gym.__version__}\n"
