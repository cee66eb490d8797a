"""Full disks: an error that names the file, nothing that was complete is lost, and the same command goes on later."""

import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from reports import full_report
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vlmrm_gym.data.videos import save_video
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.train.outputs import TensorBoardWriter

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Disk:
    """A small disk: a tmpfs."""

    def __init__(self, path):
        self.path = path

    def resize(self, size):
        """Set the size, such as "400k"."""
        options = f"remount,size={size}"
        subprocess.run(["mount", "-o", options, "tmpfs", self.path], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path):
    if sys.platform != "linux":
        pytest.skip("tmpfs is of Linux")
    path = tmp_path / "disk"
    path.mkdir()
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", path], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted: {mounted.stderr.decode().strip()}")
    yield Disk(path)
    subprocess.run(["umount", "--lazy", path], check=True)


def fail(capfd, *arguments):
    """Run a command that fails: what it prints to standard output and standard error, of its processes too."""
    with pytest.raises(SystemExit) as raised:
        main(list(map(str, arguments)))
    printed = capfd.readouterr()
    assert raised.value.code == 1, printed.err
    assert "Traceback" not in printed.err
    assert "No space left on device" in printed.err
    return printed


def test_a_warning_about_a_full_disk_is_given_once(disk, capfd):
    flags = "--seed 3 --run-name run --rl.n-steps 400 --rl.n-envs-per-worker 2 --rl.episode-length 25"
    flags += " --rl.learning-starts 60 --rl.train-freq 5 --rl.batch-size 8"
    flags += " --logging.checkpoint-freq 60 --logging.video-freq 0"
    disk.resize("200k")  # room for metrics and events, none for a policy
    (disk.path / "filler").write_bytes(bytes(40_000))
    printed = fail(capfd, "train", "CartPole-v1", *flags.split(), "--base-path", disk.path / "runs").err
    assert printed.count("The best policy could not be written") == 1


def test_tensorboard_goes_on_in_the_same_file_when_there_is_room(disk, capfd):
    """Files that were begun on a full disk would be empty, and their threads would print tracebacks."""
    disk.resize("200k")
    output, filler = TensorBoardWriter(disk.path, None), disk.path / "filler"
    output.write({"step": 1.0}, {"step": None}, 1)
    filler.touch()
    with suppress(OSError), filler.open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    for _ in range(2):
        with pytest.raises(OSError, match="No space left on device"):
            output.write({"step": 2.0}, {"step": None}, 2)
    filler.unlink()
    output.write({"step": 3.0}, {"step": None}, 3)
    output.close()
    assert len(list(disk.path.glob("events.*"))) == 1
    assert [one.step for one in EventAccumulator(str(disk.path)).Reload().Scalars("step")] == [1, 3]
    assert "Traceback" not in capfd.readouterr().err


def test_a_dataset_on_a_full_disk_goes_on_when_there_is_room(disk, capfd):
    """HDF5 would crash the process."""
    minari = pytest.importorskip("minari")
    disk.resize("700k")
    folder = disk.path / "dataset"
    command = ["dataset", "CartPole-v1", "--episodes", 12, "--steps", 40, "--prompt", "a pole", "--out", folder]
    assert "of 12 episodes are done. The same command records the others." in fail(capfd, *command).err
    assert list(folder.glob("episodes/*[0-9]"))
    disk.resize("8m")
    main(list(map(str, command)))
    dataset = minari.MinariDataset(folder / "data")
    assert len(dataset) == 12
    assert all(np.isfinite(episode.rewards).all() for episode in dataset)


def test_the_measures_of_a_check_are_printed_where_its_report_finds_no_room(disk, capfd, monkeypatch):
    """A check can take an hour."""
    monkeypatch.setattr("vlmrm_gym.tools.check.pipeline.audit", lambda *_, **__: full_report())
    disk.resize("4k")
    printed = fail(capfd, "check", "CartPole-v1", "--prompt", "a pole", "--out", disk.path / "check")
    assert "0.930 to 0.970" in printed.out
    assert "Report: " not in printed.out
    assert not (disk.path / "check").exists()


@pytest.mark.filterwarnings("ignore:The bundled model does not know this scene")
def test_a_video_that_a_full_disk_cuts_off_is_removed(disk, tmp_path, capfd):
    """imageio does not raise what ffmpeg prints. The rewards are in the table."""
    video, folder = tmp_path / "noise.mp4", disk.path / "scores"
    save_video(video, np.random.default_rng(0).integers(0, 256, (20, 64, 64, 3), dtype=np.uint8), np.zeros(20))
    disk.resize("24k")
    with pytest.raises(SystemExit, match="1"):
        main(["score", str(video), "--prompt", "noise", "--model", "tiny", "--out", str(folder)])
    printed = capfd.readouterr().err
    assert "What was to be written could not be: [Errno 5] ffmpeg could not write the video" in printed
    assert "Traceback" not in printed
    assert not (folder / "rewards.mp4").exists()
    assert (folder / "rewards.csv").exists()
