"""Processes that are killed at random moments: no reward is lost or changed, and no process is left behind."""

import signal
import subprocess
import sys

import pytest
from backends import alive, children, wait_until

import vlmrm_gym  # noqa: F401  (registers the IDs)
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


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG + f"base_path: {tmp_path / 'runs'}\n")
    return path


def begin(*arguments):
    command = [sys.executable, "-m", "vlmrm_gym.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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
