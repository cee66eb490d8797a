"""Runs whose files a stranger wrote: resuming them ends in one sentence, changes nothing, and writes nothing elsewhere.

The checksums are forged, too.
"""

import hashlib
import io
import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import forge, torch_file

from vlmrm_gym.cli import main
from vlmrm_gym.training.run_folder import RunFolder

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

CONFIG = """\
env_name: CartPole-v1
reward: {name: ground_truth}
rl:
  n_steps: 110
  n_envs_per_worker: 2
  episode_length: 20
  learning_starts: 40
  train_freq: 5
  gradient_steps: 1
  batch_size: 8
  buffer_size: 1000
logging: {checkpoint_freq: 50, video_freq: 0}
"""


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


def newest(run):
    """The folder of the newest checkpoint."""
    return max(RunFolder(run).checkpoints.items())[1]


def rezip(file, change=lambda name, content: content, **how):
    """Write a zip file again, with changed entries."""
    data = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(data, "w", **how) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return data.getvalue()


def listing(folder):
    """Every path in a folder, with its contents."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*") if path.name != ".lock"}


def refused(run, capsys):
    """What `--resume` says when it refuses a run; everything must stay as it was."""
    before = listing(run.parent)
    with pytest.raises(SystemExit) as raised:
        main(["train", "--resume", str(run), "--rl.n-steps", "160"])
    output = capsys.readouterr().err
    assert raised.value.code == 2, output
    assert len(output.splitlines()) == 1
    assert len(output) < 2_000
    assert listing(run.parent) == before
    return output


def put(*path_and_value):
    """A change of a state: the value at a path."""
    *path, last, value = path_and_value

    def change(state):
        for key in path:
            state = state[key]
        state[last] = value

    return change


TEXTS = ["a"]
for _ in range(60):
    TEXTS = [TEXTS, TEXTS]  # 60 lists in the file, 2 to the 60 when it is written out
ENVS = ("training", "envs")
TRACKER = (*ENVS, "trackers", 0)
COUNTERS = ("training", "counters")
STATES = {
    "step below zero": put("progress", "step", -5),
    "step of another checkpoint": put("progress", "step", 50),
    "steps without end": put(*COUNTERS, "num_timesteps", -(10**18)),
    "steps beyond the machine's numbers": put(*COUNTERS, "num_timesteps", 10**30),
    "steps as text": put(*COUNTERS, "num_timesteps", "105"),
    "a rate that is a tensor": put(*COUNTERS, "exploration_rate", torch.tensor([1.0, 2.0])),
    "returns that are a number": put("progress", "recent", 3),
    "returns that grow when they are written": put("progress", "recent", TEXTS),
    "rows that are none": put("progress", "unwritten", -5),
    "rows without the columns of the first": put("progress", "unlogged", [{"step": 1.0}, {}]),
    "infinite seconds": put("progress", "seconds", float("inf")),
    "a configuration that is a tensor": put("config", torch.tensor([1, 2])),
    "a configuration that grows": put("config", TEXTS),
    "a position outside of NumPy's generator": put("training", "random", "numpy", "state", "pos", 10**9),
    "a position before NumPy's generator": put("training", "random", "numpy", "state", "pos", -(10**9)),
    "a state of Python's generator that is text": put("training", "random", "python", "x"),
    "a generator with numbers that are too large": put(*ENVS, "began", 0, "state", "state", 2**300),
    "generators of other environments": put(*ENVS, "began", []),
    "actions without end": put(*ENVS, "since", [torch.zeros(2, dtype=torch.int64)] * 100_000),
    "actions of another space": put(*ENVS, "since", [torch.full((2,), 10**9)]),
    "actions of another shape": put(*ENVS, "since", [torch.zeros((7, 3))]),
    "actions that are text": put(*ENVS, "since", ["left"]),
    "no episodes": put(*TRACKER, "episodes", []),
    "counts of an episode as text": put(*TRACKER, "episodes", 0, "steps", "many"),
    "rewards that are text": put(*TRACKER, "new_rewards", ["a"]),
    "rewards that are not finite": put(*TRACKER, "new_rewards", [{"vlm_rewards": torch.full((3,), torch.nan)}]),
    "rewards with something else": put(*TRACKER, "new_rewards", [{"vlm_rewards": torch.zeros(3), "more": 1}]),
    "a tensor without its memory": put("training", "episode_starts", torch.zeros(1, dtype=torch.bool).expand(10**12)),
    "a tensor of no device": put("training", "episode_starts", torch.zeros(2, dtype=torch.bool, device="meta")),
    "noise that the algorithm lacks": put("training", "action_noise", [{"a": 1}]),
}


@pytest.mark.parametrize("change", STATES.values(), ids=STATES)
def test_a_forged_state_is_refused(change, run, capsys):
    file = newest(run) / "state.pt"
    state = torch.load(file, weights_only=True)
    change(state)
    forge(file, torch_file(state))
    output = refused(run, capsys)
    assert "is not of this run: " in output or "another configuration" in output


def test_a_checkpoint_under_another_step_is_refused(run, capsys):
    newest(run).rename(run / "checkpoints" / "9999999999")
    assert "its step must be 9999999999. Received 110" in refused(run, capsys)


def fill(name, value):
    """A change of a replay buffer: an array full of a value."""
    return lambda arrays: arrays.update({name: np.full_like(arrays[name], value)})


def pending(**arrays):
    """A change of a replay buffer: one pending transition."""
    fields = {"observations": np.zeros((1, 4)), "next_observations": np.zeros((1, 4)), "actions": np.zeros((1, 1), int)}
    fields |= {"dones": np.zeros(1), "timeouts": np.zeros(1), "env_index": np.zeros(1, int)}
    fields |= {"step_index": np.zeros(1, int), **arrays}
    return lambda buffer: buffer.update({f"pending_{name}": values for name, values in fields.items()})


BUFFERS = {
    "rewards": fill("rewards", np.nan),
    "actions": fill("actions", 10**6),
    "actions below zero": fill("actions", -7),
    "position": fill("pos", -1),
    "full": fill("full", True),
    "pending environment": pending(env_index=np.array([99])),
    "pending observations": pending(observations=np.zeros((1, 9, 9))),
    "pending actions": pending(actions=np.full((1, 1), 77)),
    "pending times": pending(step_index=np.zeros(0, int)),
}


@pytest.mark.parametrize("change", BUFFERS.values(), ids=BUFFERS)
def test_a_forged_replay_buffer_is_refused(change, run, capsys):
    file = newest(run) / "replay_buffer.npz"
    arrays = dict(np.load(file))
    change(arrays)
    data = io.BytesIO()
    np.savez(data, **arrays)
    forge(file, data.getvalue())
    assert f"The replay buffer {file} is not of this run, or damaged" in refused(run, capsys)


def every_tensor(change):
    """A change of a network's state: of all its tensors."""
    return lambda state: {name: change(tensor) for name, tensor in state.items()}


def of_group(**values):
    """A change of an optimiser's state: settings."""
    return lambda state: {**state, "param_groups": [{**state["param_groups"][0], **values}]}


def of_parameters(**values):
    """A change of an optimiser's state: what it keeps for each parameter."""
    return lambda state: {**state, "state": {i: {**own, **values} for i, own in state["state"].items()}}


WEIGHTS = {
    "not finite": ("policy.pth", every_tensor(lambda tensor: tensor * torch.nan)),
    "of another dtype": ("policy.pth", every_tensor(lambda tensor: tensor.to(torch.int8))),
    "complex": ("policy.pth", every_tensor(lambda tensor: tensor.to(torch.complex64))),
    "of another shape": ("policy.pth", every_tensor(lambda tensor: torch.zeros(3))),
    "without memory": ("policy.pth", every_tensor(lambda tensor: torch.zeros(1).expand(tensor.shape))),
    "a list": ("policy.pth", lambda state: [1]),
    "a learning rate that is text": ("policy.optimizer.pth", of_group(lr="fast")),
    "betas that are text": ("policy.optimizer.pth", of_group(betas="x")),
    "settings that no optimiser has": ("policy.optimizer.pth", of_group(fused=True, differentiable=True)),
    "moments of another shape": ("policy.optimizer.pth", of_parameters(exp_avg=torch.zeros(3))),
    "moments that are not finite": ("policy.optimizer.pth", of_parameters(step=torch.tensor(torch.nan))),
    "moments that are text": ("policy.optimizer.pth", of_parameters(exp_avg_sq="x")),
    "moments too many": ("policy.optimizer.pth", of_parameters(extra=torch.zeros(3))),
}


@pytest.mark.parametrize(("entry", "change"), WEIGHTS.values(), ids=WEIGHTS)
def test_forged_weights_are_refused(entry, change, run, capsys):
    file = newest(run) / "model.zip"

    def changed(name, content):
        return torch_file(change(torch.load(io.BytesIO(content), weights_only=True))) if name == entry else content

    forge(file, rezip(file, changed))
    assert f"The policy {file} is damaged, or not a DQN of this run" in refused(run, capsys)


@pytest.mark.parametrize("name", ["model.zip", "replay_buffer.npz", "state.pt"])
def test_compressed_files_are_refused_before_they_are_read(name, run, capsys):
    """A small compressed file can fill the memory."""
    file = newest(run) / name
    forge(file, rezip(file, compression=zipfile.ZIP_DEFLATED))
    assert "entries must not be compressed" in refused(run, capsys)


def test_compressed_tensors_within_a_policy_are_refused(run, capsys):
    def compressed(name, content):
        is_tensors = name == "policy.pth"
        return rezip(io.BytesIO(content), compression=zipfile.ZIP_DEFLATED) if is_tensors else content

    file = newest(run) / "model.zip"
    forge(file, rezip(file, compressed))
    assert "entries must not be compressed" in refused(run, capsys)


def test_an_array_that_says_it_is_huge_is_refused(run, capsys):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**14,)})
    file = newest(run) / "replay_buffer.npz"
    forge(file, rezip(file, lambda name, content: header.getvalue() if name == "observations.npy" else content))
    assert "is not of this run, or damaged" in refused(run, capsys)


@pytest.mark.parametrize("name", ["../../../mine", "/etc/hostname", "\x1b[2J", "a" * 5_000, "a\0b"])
def test_a_manifest_names_files_of_the_checkpoint_only(name, run, tmp_path, capsys):
    (tmp_path / "mine").write_text("mine")
    manifest = newest(run) / "manifest.json"
    digest = hashlib.blake2b(b"mine").hexdigest()
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), name: digest}))
    output = refused(run, capsys)
    assert "is damaged: manifest.json is not what was written" in output
    assert output.rstrip("\n").isprintable()


@pytest.mark.parametrize("name", ["versions.json", "config.partial.yaml", "notes"])
def test_a_pipe_in_a_run_is_refused(name, run, capsys):
    """Opening it would wait without end."""
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    assert f"{name} must be a file or a folder, as a run writes it. Remove it" in refused(run, capsys)


def test_events_with_any_name_are_no_error(run):
    (run / "events.out.tfevents.soon.x").touch()
    main(["train", "--resume", str(run), "--rl.n-steps", "160"])
    assert max(RunFolder(run).checkpoints) == 160


def test_a_configuration_cannot_redirect_a_run_that_is_resumed(run, tmp_path):
    file = run / "config.yaml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("base_path", "run_name"))]
    file.write_text("\n".join([*lines, f"base_path: {tmp_path / 'elsewhere'}", "run_name: other"]))
    main(["train", "--resume", str(run), "--rl.n-steps", "160"])
    assert max(RunFolder(run).checkpoints) == 160
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
