"""Ctrl-C while a checkpoint is written: the one before it is kept, or the new one is complete."""

import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from vlmrm_gym._util import files
from vlmrm_gym.cli import main
from vlmrm_gym.training import run_folder
from vlmrm_gym.training.run_folder import RunFolder

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

TRAINING = ["--env-name", "VLMRM/CartPole-v1", "--rl.n-steps", "200", "--rl.n-envs-per-worker", "2", "--seed", "3"]
TRAINING += ["--rl.episode-length", "20", "--rl.learning-starts", "60", "--rl.batch-size", "8", "--rl.train-freq", "5"]
TRAINING += ["--logging.checkpoint-freq", "100", "--logging.video-freq", "0"]
TRAINED_IN = (run_folder.__file__, files.__file__, shutil.__file__)


def writers(text):
    """Writers of a checkpoint whose files have a text in them."""
    names = ("model.zip", "state.json", "replay_buffer.npz")
    return {name: lambda path: path.write_text(text) for name in names}


class InterruptAt:
    """Raises KeyboardInterrupt before the n-th line that writes a checkpoint."""

    def __init__(self, line):
        self.left = line

    def __call__(self, frame, event, argument):
        if frame.f_code.co_filename not in TRAINED_IN:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def test_an_interruption_at_any_line_leaves_a_complete_checkpoint(tmp_path, monkeypatch):
    """The newest one has the contents of one step, and the next one can be written."""
    monkeypatch.setattr(run_folder, "sync", lambda path: None)  # waits for the disk
    template = RunFolder(tmp_path / "template")
    for step in (100, 200):
        template.save_checkpoint(step, writers(f"step {step}"))
    line, found, is_done = 0, set(), False
    while not is_done:
        line += 1
        folder = RunFolder(Path(shutil.copytree(template.path, tmp_path / f"{line}")))
        trace = sys.gettrace()
        try:
            sys.settrace(InterruptAt(line))
            folder.save_checkpoint(300, writers("step 300"))
            is_done = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(trace)
        newest = folder.newest_checkpoint()
        assert newest is not None
        assert (newest / "state.json").read_text() == f"step {int(newest.name)}"
        found.add(int(newest.name))
        folder.save_checkpoint(400, writers("step 400"))
        assert folder.newest_checkpoint() == folder.checkpoints[400]
        assert not list(folder.path.glob("checkpoints/*.partial"))
    assert line > 50
    assert found == {200, 300}


@pytest.mark.slow
def test_ctrl_c_twice_leaves_no_process_and_a_run_that_goes_on(tmp_path, monkeypatch, capfd):
    """The second one arrives while the checkpoint of the first is written; the resumed run equals an unbroken one."""
    main(["train", *TRAINING, "--base-path", str(tmp_path), "--run-name", "whole"])
    synced, sync = [], run_folder.sync

    def interrupting(path):
        synced.append(path)
        if len(synced) == 8:
            os.kill(os.getpid(), signal.SIGINT)
        sync(path)

    def interrupted(folder, rows):
        append(folder, rows)
        if folder.checkpoints and run_folder.sync is sync:
            monkeypatch.setattr(run_folder, "sync", interrupting)
            os.kill(os.getpid(), signal.SIGINT)  # a checkpoint is written after this rollout

    append = RunFolder.append_metrics
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_metrics", interrupted)
        with pytest.raises(SystemExit) as raised:
            main(["train", *TRAINING, "--reward.num-workers", "1", "--base-path", str(tmp_path), "--run-name", "run"])
    monkeypatch.setattr(run_folder, "sync", sync)
    assert raised.value.code == 130
    assert not multiprocessing.active_children()
    output = capfd.readouterr().err
    assert "Traceback" not in output
    run = RunFolder.open(tmp_path / "run")
    assert len(synced) >= 8
    reached = max(run.checkpoints)
    assert run.newest_checkpoint() == run.checkpoints[reached]
    assert f"To resume from step {reached}" in output
    main(["train", "--resume", str(run.path)])
    whole = RunFolder(tmp_path / "whole")
    learned = [[row["vlm_return"] for row in folder.metrics()] for folder in (whole, run)]
    assert learned[0] == pytest.approx(learned[1], abs=1e-5)
