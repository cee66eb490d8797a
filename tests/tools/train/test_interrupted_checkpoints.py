"""Ctrl-C while a checkpoint is written: the one before it is kept, or the new one is complete."""

import shutil
import sys
from pathlib import Path

import pytest

from vlmrm_gym._util import files
from vlmrm_gym.tools.train import run_folder
from vlmrm_gym.tools.train.run_folder import RunFolder

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


@pytest.mark.filterwarnings("ignore::ResourceWarning")
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
