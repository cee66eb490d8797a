"""Processes that are killed at random moments: no reward is lost or changed, and no process is left behind."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import vlmrm_gym  # noqa: F401  (registers the IDs)
from vlmrm_gym.cli import main
from vlmrm_gym.training.run_folder import RunFolder

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

CONFIG = """\
env_name: CartPole-v1
seed: 3
rl:
  n_steps: 600
  n_envs_per_worker: 2
  episode_length: 25
  learning_starts: 60
  train_freq: 5
  gradient_steps: 1
  batch_size: 8
logging:
  checkpoint_freq: 60
  video_freq: 0
"""


def children(pid):
    """The process IDs of a process's children, zombies excluded."""
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found |= {int(child) for child in task.read_text().split()}
    return {child for child in found if alive(child)}


def alive(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG + f"base_path: {tmp_path / 'runs'}\n")
    return path


def begin(*arguments, prefix=()):
    command = [*prefix, sys.executable, "-m", "vlmrm_gym.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def learned(folder):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in folder.metrics()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("moment", ["loading", "training"])
def test_no_worker_outlives_a_training_that_gets_a_signal(name, moment, config, tmp_path):
    """Contract 8: within 5 s, but for the time that writing a checkpoint takes; while the workers load, too."""
    arguments = ("--run-name", "run", "--rl.n-steps", 100_000, "--rl.learning-starts", 120, "--reward.num-workers", 2)
    process, folder = begin("train", config, *arguments), RunFolder(tmp_path / "runs" / "run")
    try:
        wait_for(lambda: process.poll() is not None or len(children(process.pid)) >= 2)
        if moment == "training":
            wait_for(lambda: process.poll() is not None or folder.metrics())
        assert process.poll() is None, process.communicate()
        workers = children(process.pid)
        process.send_signal(getattr(signal, name))
        wait_for(lambda: not any(map(alive, workers)), seconds=5 if name == "SIGKILL" or moment == "loading" else 20)
        _, output = process.communicate(timeout=30)
    finally:
        process.kill()
    number = getattr(signal, name)
    assert process.returncode in (-number, 128 + number)  # a shell shows both as the latter
    assert "Traceback" not in output


def kill_after(rows, folder, process, seconds):
    """Kill a training some time after its metrics have so many rows."""
    wait_for(lambda: process.poll() is not None or (folder.config_file.exists() and len(folder.metrics()) >= rows))
    time.sleep(seconds)
    assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_a_training_that_is_killed_five_times_equals_the_unbroken_one(config, tmp_path):
    """SIGKILL at random moments, while starting, stepping, learning or writing a checkpoint."""
    main(["train", str(config), "--run-name", "unbroken"])
    rng, folder = np.random.default_rng(0), RunFolder(tmp_path / "runs" / "killed")
    process = begin("train", config, "--run-name", "killed")
    for number in range(5):
        kill_after(len(folder.metrics()) + number % 2, folder, process, rng.uniform(0, 0.3))
        process = begin("train", "--resume", folder.path)
    _, output = process.communicate(timeout=200)
    assert process.returncode == 0, output
    assert learned(folder) == learned(RunFolder(tmp_path / "runs" / "unbroken"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a short run."""
    path = tmp_path_factory.mktemp("runs")
    (path / "config.yaml").write_text(CONFIG)
    main(["train", str(path / "config.yaml"), "--base-path", str(path), "--run-name", "run", "--rl.n-steps", "120"])
    return path / "run"


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.mark.slow
def test_of_two_resumes_at_once_one_goes_on(run, tmp_path):
    """The other changes nothing; by another name of the folder, too."""
    (tmp_path / "link").symlink_to(run)
    processes = [begin("train", "--resume", path, "--rl.n-steps", 3_000) for path in (run, tmp_path / "link")]
    output = [process.communicate(timeout=200)[1] for process in processes]
    winner = [process.returncode for process in processes].index(0)
    loser = 1 - winner
    assert processes[loser].returncode == 2
    assert "is being trained by another process. Wait for its end." in output[loser]
    steps = [row["step"] for row in RunFolder(run).metrics()]
    assert steps == sorted(set(steps))
    assert max(RunFolder(run).checkpoints) == 3_000


def test_a_run_is_resumed_through_a_link_to_its_folder(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    main(["train", "--resume", str(tmp_path / "link"), "--rl.n-steps", "180"])
    assert max(RunFolder(run).checkpoints) == 180
    assert (tmp_path / "link").is_symlink()


def without_write_permission(folder):
    """Take it from everybody, and return what a command needs before it, so that root obeys."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & 0o555)
    dropped = "-dac_override,-dac_read_search,-fowner"
    return ["setpriv", f"--inh-caps={dropped}", f"--bounding-set={dropped}"] if os.geteuid() == 0 else []


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root writes where nobody may")
@pytest.mark.parametrize("command", [["train", "--resume"], ["evaluate", "--episodes", "1"]], ids=lambda own: own[0])
def test_a_run_in_a_read_only_folder_is_one_sentence_and_unchanged(command, run):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    prefix = without_write_permission(run)
    process = begin(*command, run, prefix=prefix)
    _, output = process.communicate(timeout=120)
    assert process.returncode in (1, 2), output
    assert "Permission denied" in output
    assert "Traceback" not in output
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    for path in (run, *run.rglob("*")):
        path.chmod(path.stat().st_mode | 0o700)
