"""examples/sac_continuous.py leaves what it promises, learns by its losses, and goes on from its checkpoints."""

import csv
import json
import runpy
import shutil
import sys
from dataclasses import replace
from itertools import pairwise

import imageio.v3 as iio
import pytest
import sac_continuous
import torch
from conftest import LIBRARIES_WARN
from torch import nn

from vlmrm_gym.data.replay import Batch

pytestmark = [pytest.mark.slow, LIBRARIES_WARN]

MOUNTAIN_CAR = "VLMRM/MountainCarContinuous-v0"
OWN_REWARD = {"reward": "reward_models:PixelReward", "reward_kwargs": '{"batch_size": 8}'}


def short(folder, **changes):
    settings = {
        "env_id": MOUNTAIN_CAR,
        "textured": False,
        "runs_folder": folder,
        "num_envs": 1,
        "episode_length": 50,
        "total_timesteps": 150,
        "learning_starts": 100,
        "updates_per_step": 0.4,
        "hidden": 8,
        "batch_size": 16,
        "selection_frequency": 125,
        "checkpoint_frequency": 50,
        "eval_episodes": 2,
        "capture_video": False,
    }
    return sac_continuous.Args(**(settings | changes))


def resumed(folder, **changes):
    """Settings that resume a run."""
    return replace(sac_continuous.load_checkpoint(folder)[0], **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run, and its actor, Q functions and their targets before each update."""
    seen = []

    class Agent(sac_continuous.Agent):
        def losses(self, *arguments):
            nets = (self.actor, self.qf, self.qf_target)
            seen.append([nn.utils.parameters_to_vector(net.parameters()).detach().clone() for net in nets])
            return super().losses(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sac_continuous, "Agent", Agent)
        return sac_continuous.main(short(tmp_path_factory.mktemp("runs"), capture_video=True)), seen


def test_it_writes_curve_video_events_result_and_the_agent(finished):
    """The actor is updated at every second update of the Q functions."""
    folder, seen = finished
    result = json.loads((folder / "result.json").read_text())
    assert (result["timesteps"], result["args"]["hidden"]) == (150, 8)
    assert result["success"] in (0, 0.5, 1)
    assert iio.imread(folder / "agent.mp4").shape == (50, 472, 600, 3)
    with (folder / "learning_curve.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file) if row["task_return"]] == ["50", "100", "150"]
    assert list(folder.glob("events.out.tfevents.*"))
    envs = sac_continuous.make_envs(short(folder), 1)
    loaded, saved = sac_continuous.load_agent(folder, envs).state_dict(), torch.load(folder / "agent.pt")
    assert all(torch.equal(value, saved[name]) for name, value in loaded.items())
    envs.close()
    assert len(seen) == 20
    for update, (before, after) in enumerate(pairwise(seen), 1):
        changed = [not torch.equal(one, other) for one, other in zip(before, after, strict=True)]
        assert changed == [update % 2 == 0, True, True]


@pytest.mark.filterwarnings("ignore:The bundled model does not know")
def test_it_takes_any_id_and_reward(tmp_path):
    """The ant falls: its episodes end at different times. Success is not known, and is not reported."""
    lengths = {"episode_length": 20, "learning_starts": 40, "total_timesteps": 60, "selection_frequency": 50}
    folder = sac_continuous.main(short(tmp_path, env_id="Ant-v5", textured=True, **OWN_REWARD, **lengths))
    result = json.loads((folder / "result.json").read_text())
    assert result["timesteps"] == 60
    assert not {"success", "success_fraction"} & set(result)
    assert "success_fraction" not in (folder / "learning_curve.csv").read_text()


def test_it_resumes_to_the_bit(tmp_path, monkeypatch):
    """Trainings resumed from one checkpoint keep its transitions and are the same, also one resumed after its end."""
    with monkeypatch.context() as patch:
        patch.setattr(sac_continuous, "play_episodes", lambda *_, **__: 1 / 0)  # at step 125
        with pytest.raises(ZeroDivisionError):
            sac_continuous.main(short(tmp_path / "one"))
    (one,) = (tmp_path / "one").iterdir()
    other = shutil.copytree(one, tmp_path / "other")
    before = torch.load(one / "checkpoint.pt")
    assert before["global_step"] == 100
    ends = []
    for folder in (one, other, other):
        assert sac_continuous.main(resumed(folder)) == folder
        ends.append(torch.load(folder / "checkpoint.pt"))
        assert (ends[-1]["global_step"], ends[-1]["updates"]) == (150, 20)
        for name in ("agent", "optimizer", "buffer", "torch", "curve"):
            torch.testing.assert_close(ends[-1][name], ends[0][name], rtol=0, atol=0, equal_nan=True)
    stored = len(before["buffer"]["rewards"])
    assert stored in (50, 100)  # rewards of the last episode may have come or not
    for name in ("observations", "actions", "rewards"):
        torch.testing.assert_close(ends[0]["buffer"][name][:stored], before["buffer"][name])


def test_a_finished_run_is_lengthened_by_the_command(finished, tmp_path, monkeypatch):
    """Other changes are refused, and so are fewer steps."""
    folder = shutil.copytree(finished[0], tmp_path / "run")
    program = [sac_continuous.__file__, "--resume", str(folder)]
    for changes, message in {
        ("--seed", "5"): "`seed` is 5, was 1. Start a new run for that.",
        ("--total-timesteps", "149"): "`total_timesteps` is 149, was 150. Start a new run for that.",
    }.items():
        monkeypatch.setattr(sys, "argv", [*program, *changes])
        with pytest.raises(ValueError, match=message):
            runpy.run_path(sac_continuous.__file__, run_name="__main__")
    monkeypatch.setattr(sys, "argv", [*program, "--total-timesteps", "200", "--no-capture-video"])
    runpy.run_path(sac_continuous.__file__, run_name="__main__")
    result = json.loads((folder / "result.json").read_text())
    assert (result["timesteps"], result["args"]["total_timesteps"], result["args"]["hidden"]) == (200, 200, 8)
    curve = (folder / "learning_curve.csv").read_text().splitlines()
    assert {"50", "100", "150", "200"} <= {row.split(",")[0] for row in curve}


def test_a_missing_damaged_or_old_checkpoint_is_refused(tmp_path):
    for contents in (None, b"PK\x03\x04 cut off", {"args": {"alpha_of_old": 0.1}}):
        if isinstance(contents, dict):
            torch.save(contents, tmp_path / "checkpoint.pt")
        elif contents is not None:
            (tmp_path / "checkpoint.pt").write_bytes(contents)
        with pytest.raises(ValueError, match="`resume` must be the folder of a run of this version"):
            sac_continuous.main(sac_continuous.Args(resume=tmp_path))


CODE = "vlmrm_gym:gym.spaces.box.np.f2py.subprocess.Popen"


def test_a_checkpoint_names_no_code_unless_a_flag_says_the_same():
    given = sac_continuous.Args(env_id="vlmrm_gym:VLMRM/CartPole-v1")
    sac_continuous.check_named_code(given, sac_continuous.Args())
    for name, value in {"reward": {"kind": "import"}, "combine_views": CODE, "env_id": "a:A-v0"}.items():
        saved = replace(given, **{name: value})
        with pytest.raises(ValueError, match=f"`{name}` of the checkpoint names code that would be run"):
            sac_continuous.check_named_code(saved, given)
        sac_continuous.check_named_code(saved, replace(given, **{name: value}))


def test_resuming_with_a_strangers_checkpoint_runs_nothing(tmp_path, monkeypatch):
    """The program ends before it makes an environment."""
    arguments = {"reward": CODE, "reward_kwargs": f'{{"args": ["touch", "{tmp_path / "made"}"]}}'}
    torch.save({"args": arguments}, tmp_path / "checkpoint.pt")
    monkeypatch.setattr(sys, "argv", [sac_continuous.__file__, "--resume", str(tmp_path)])
    with pytest.raises(ValueError, match="`reward` of the checkpoint names code that would be run"):
        runpy.run_path(sac_continuous.__file__, run_name="__main__")
    assert not (tmp_path / "made").exists()


def test_hidden_layers_in_bfloat16_are_close_to_those_in_float32():
    """Parameters, outputs and gradients stay float32; without the flag, nothing is rounded."""
    torch.manual_seed(0)
    rounded, exact = (sac_continuous.Hidden(5, sac_continuous.Args(hidden=64, bfloat16=on)) for on in (True, False))
    exact.load_state_dict(rounded.state_dict())
    x = torch.randn(32, 5)
    low, high = rounded(x), exact(x)
    low.sum().backward()
    assert {one.dtype for one in (low, *rounded.parameters(), rounded[0].weight.grad)} == {torch.float32}
    assert 0 < (low - high).abs().max() < 0.02


def test_losses_are_one_graph_for_a_gpu_and_train_the_q_functions_by_their_own_loss_only():
    torch.manual_seed(0)
    envs = sac_continuous.make_envs(sac_continuous.default_args(MOUNTAIN_CAR), 1)
    agent = sac_continuous.Agent(envs, sac_continuous.default_args(MOUNTAIN_CAR))
    envs.close()
    batch = Batch(torch.randn(8, 2), torch.rand(8, 1), torch.randn(8, 2), torch.rand(8), torch.zeros(8))
    compiled = torch.compile(agent.losses, fullgraph=True, backend="eager")
    for update_actor in (True, False):
        losses = []
        for of in (compiled, agent.losses):
            torch.manual_seed(1)
            losses.append(of(batch, update_actor))
        torch.testing.assert_close(*losses)
    torch.manual_seed(1)
    *others, actor_loss = agent.losses(batch)
    torch.testing.assert_close(tuple(others), losses[1])
    actor_loss.backward()
    assert all(parameter.grad is None for parameter in agent.qf.parameters())
    assert all(parameter.grad is not None for parameter in agent.actor.parameters())


def test_only_training_episodes_start_near_the_goal_and_it_does_not_learn_before_they_have_been_scored(
    tmp_path, monkeypatch
):
    """The agent is chosen and evaluated from the usual initial state. Learning may be to start early, without error."""
    make, probabilities = sac_continuous.make_vector_env, []

    def make_and_note(*positional, **options):
        envs = make(*positional, **options)
        probabilities.append(envs.unwrapped.single_env.start_near_goal)
        return envs

    monkeypatch.setattr(sac_continuous, "make_vector_env", make_and_note)
    lengths = {"episode_length": 15, "learning_starts": 0, "total_timesteps": 12}
    folder = sac_continuous.main(short(tmp_path, env_id="VLMRM/Humanoid-stand-v0", start_near_goal=0.5, **lengths))
    assert probabilities == [0.5, 0.0, 0.0]
    assert torch.load(folder / "checkpoint.pt")["updates"] == 0


def test_no_flag_is_dropped_in_silence(tmp_path):
    """A camera may be a number, as in MuJoCo."""
    given = sac_continuous.Args(env_id="Ant-v5", reward="m:f", camera="0", model="other", alpha=0.5, textured=False)
    expected = {"reward": "m:f", "camera": 0, "model": "other", "alpha": 0.5, "device": "auto", "textured": False}
    assert sac_continuous.task_options(given) == expected
    for changes, message in (
        ({**OWN_REWARD, "alpha": 0.5}, "`reward` and `alpha` cannot both be passed"),
        ({**OWN_REWARD, "reward": None}, "`reward_kwargs` "),
    ):
        with pytest.raises(TypeError, match=message):
            sac_continuous.make_envs(short(tmp_path, **changes), 1)
