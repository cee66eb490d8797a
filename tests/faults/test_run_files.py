"""Files of a run that are damaged, and agents that a stranger wrote.

Commands refuse them in one sentence, execute nothing, and change nothing.
"""

import base64
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN

from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.train.run_folder import RunFolder

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

CONFIG = """\
env_name: CartPole-v1
reward: {name: ground_truth}
rl: {n_steps: 210, n_envs_per_worker: 2, episode_length: 25, learning_starts: 60, train_freq: 5, gradient_steps: 1,
     batch_size: 8, buffer_size: 1000}
logging: {checkpoint_freq: 50, video_freq: 0}
"""
NEWEST = "checkpoints/0000000210"
POLICY, BUFFER, STATE = f"{NEWEST}/model.zip", f"{NEWEST}/replay_buffer.npz", f"{NEWEST}/state.json"
MANIFEST = f"{NEWEST}/manifest.json"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a short run, which ended in the middle of an episode."""
    path = tmp_path_factory.mktemp("runs")
    (path / "config.yaml").write_text(CONFIG)
    main(["train", str(path / "config.yaml"), "--base-path", str(path), "--run-name", "run"])
    return path / "run"


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def listing(folder):
    """Every path in a folder, with its contents."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*") if path.name != ".lock"}


def resume(run):
    main(["train", "--resume", str(run), "--rl.n-steps", "260"])


def refused(run, capsys, command="resume"):
    """What is said when a run is refused: by `--resume`, or by `evaluate` with its best or last policy."""
    before = listing(run.parent)
    with pytest.raises(SystemExit) as raised:
        resume(run) if command == "resume" else main(["evaluate", str(run), "--policy", command, "--no-video"])
    output = capsys.readouterr().err
    assert raised.value.code == 2, output
    assert "Traceback" not in output
    assert "weights_only" not in output
    assert len(output) < 2_000
    assert listing(run.parent) == before
    return output


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def one_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def written(content):
    return lambda file: file.write_bytes(content)


DAMAGED = [
    # What is damaged, how, and what refuses it: going on with the run, or playing its last or its best policy.
    (POLICY, written(b""), "resume last"),
    (POLICY, one_bit, "resume"),
    (STATE, cut, "resume"),
    (BUFFER, one_bit, "resume"),
    (MANIFEST, written(b'{"model.zip": 3}'), "resume"),
    ("best.zip", cut, "best"),
    ("config.yaml", written(b"env_name: ["), "resume best"),
]


def test_a_damaged_run_is_refused_by_the_file_or_its_folder(trained, tmp_path, capsys):
    for number, (name, damage, commands) in enumerate(DAMAGED):
        run = Path(shutil.copytree(trained, tmp_path / str(number) / "run"))
        damage(run / name)
        for command in commands.split():
            output = refused(run, capsys, command)
            assert any(str(named) in output for named in (run / name, (run / name).parent))
            if command == "resume" and NEWEST in name:
                assert "is damaged: " in output
                assert "Remove that folder to resume from step 200." in output


def test_a_run_goes_on_without_what_it_does_not_need(run):
    """Metrics, best policy and curve are restored from the checkpoint; the newest one, which is not complete, goes."""
    expected = [{**row, "seconds": 0} for row in RunFolder(run).metrics()]
    with (run / "metrics.csv").open("ab") as file:
        file.write(b"7,8,\xff")
    (run / "learning_curve.png").unlink()
    (run / "versions.json").write_text("[{")
    cut(run / "checkpoints/0000000050/model.zip")
    (run / MANIFEST).unlink()
    (run / "events.out.tfevents.soon.x").touch()
    resume(run)
    assert max(RunFolder(run).checkpoints) == 260
    np.testing.assert_equal([{**row, "seconds": 0} for row in RunFolder(run).metrics()][: len(expected)], expected)


def test_a_configuration_cannot_redirect_a_run_that_is_resumed(run, tmp_path):
    """Also through a link to its folder."""
    (link := tmp_path / "link").symlink_to(run)
    file = run / "config.yaml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("base_path", "run_name"))]
    file.write_text("\n".join([*lines, f"base_path: {tmp_path / 'elsewhere'}", "run_name: other"]))
    resume(link)
    assert max(RunFolder(run).checkpoints) == 260
    assert {path.name for path in tmp_path.iterdir()} == {"run", "link"}


def without_write_permission(folder):
    """Take it from everybody, and return what a command needs before it, so that root obeys."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & 0o555)
    dropped = "-dac_override,-dac_read_search,-fowner"
    return ["setpriv", f"--inh-caps={dropped}", f"--bounding-set={dropped}"] if os.geteuid() == 0 else []


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root writes where nobody may")
def test_a_run_in_a_read_only_folder_is_one_sentence_and_unchanged(run):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    prefix = without_write_permission(run)
    program = [*prefix, sys.executable, "-m", "vlmrm_gym", "train", "--resume", run]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode in (1, 2), done.stderr
    assert "Permission denied" in done.stderr
    assert "Traceback" not in done.stderr
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    for path in (run, *run.rglob("*")):
        path.chmod(path.stat().st_mode | 0o700)


def saved(save, *values, **named):
    """The bytes that a function writes."""
    data = io.BytesIO()
    save(data, *values, **named)
    return data.getvalue()


def torch_file(value):
    return saved(lambda data: torch.save(value, data))


def rezip(content, change=lambda name, own: own, **how):
    """A zip file again, with changed entries."""
    data = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(data, "w", **how) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return data.getvalue()


def compress(content):
    return rezip(content, compression=zipfile.ZIP_DEFLATED)


def with_entry(entry, change):
    """A change of a zip file: of one entry."""
    return lambda content: rezip(content, lambda name, own: change(own) if name == entry else own)


def weights(change, entry="policy.pth"):
    """A change of what an entry of a policy says."""
    changed = with_entry(entry, lambda own: torch_file(change(torch.load(io.BytesIO(own), weights_only=True))))
    return changed, "is damaged, or not a DQN of this run"


def tensors(change):
    return weights(lambda own: {name: change(tensor) for name, tensor in own.items()})


FORGED = {
    "weights that are not finite": tensors(lambda tensor: tensor * torch.nan),
    "weights of another shape": tensors(lambda tensor: torch.zeros(3)),
    "weights of 10^14 bytes": tensors(lambda tensor: torch.zeros(1, dtype=torch.int8).expand(10**7, 10**7)),
    "a compressed policy": (compress, "entries must not be compressed"),
}


def test_the_agent_of_a_stranger_is_refused(run, capsys):
    file = run / POLICY
    own = file.read_bytes()
    for change, words in FORGED.values():
        file.write_bytes(change(own))
        output = refused(run, capsys, "last")
        assert words in output
        assert len(output.splitlines()) == 1
        assert output.rstrip("\n").isprintable()


class Payload:
    """Creates a folder when unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_a_pickle_in_an_agent_is_not_executed(run, tmp_path, capsys):
    """Neither as the file, nor as the weights in it."""
    made = tmp_path / "made"
    inside = with_entry("policy.pth", lambda _: torch_file(Payload(made)))
    for name, content in (
        (POLICY, pickle.dumps(Payload(made))),
        (POLICY, inside((run / POLICY).read_bytes())),
        ("best.zip", inside((run / "best.zip").read_bytes())),
    ):
        (run / name).write_bytes(content)
        output = refused(run, capsys, "best" if name == "best.zip" else "last")
        assert str(run / name) in output
        assert len(output.splitlines()) == 1
        assert not made.exists()


def test_only_tensors_of_a_policy_are_read(run, tmp_path):
    """Stable-Baselines3's own `load` would execute the payload."""
    made = tmp_path / "made"
    code = base64.b64encode(pickle.dumps(Payload(made))).decode()
    description = {"description": {":type:": "x", ":serialized:": code}}
    change = with_entry("data", lambda own: json.dumps({**json.loads(own), **description}))
    for file in (run / "best.zip", run / POLICY):
        file.write_bytes(change(file.read_bytes()))
        DQN.load(file)
        made.rmdir()  # so the payload works
    for policy in ("best", "last"):
        main(["evaluate", str(run), "--episodes", "1", "--no-video", "--policy", policy])
    assert not made.exists()
