"""The other examples run as they are, and leave what they promise."""

import csv
import json
import os
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import imageio.v3 as iio
import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import sac_continuous
import sb3_sac

from vlmrm_gym.replay import Batch
from vlmrm_gym.training.single_files import load_args, load_checkpoint

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

MOUNTAIN_CAR = "VLMRM/MountainCarContinuous-v0"


def short(tmp_path, **changes):
    settings = {
        "env_id": MOUNTAIN_CAR,
        "textured": False,
        "runs_folder": tmp_path,
        "num_envs": 1,
        "total_timesteps": 600,
        "learning_starts": 400,
        "updates_per_step": 0.1,
        "hidden": 8,
        "batch_size": 16,
        "selection_frequency": 500,
        "checkpoint_frequency": 200,
        "eval_episodes": 2,
    }
    return sac_continuous.Args(**(settings | changes))


def resumed(folder, **changes):
    """Settings that resume a run."""
    return replace(load_args(sac_continuous.Args, folder, sac_continuous.CHECKPOINT_FORMAT), **changes)


def test_sac_writes_curve_video_events_and_result(tmp_path):
    folder = sac_continuous.main(short(tmp_path))
    result = json.loads((folder / "result.json").read_text())
    assert result["timesteps"] == 600
    assert result["success"] in (0, 0.5, 1)
    assert iio.imread(folder / "agent.mp4").shape == (200, 472, 600, 3)
    with (folder / "learning_curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows if row["task_return"]] == ["200", "400", "600"]
    assert list(folder.glob("events.out.tfevents.*"))
    envs = sac_continuous.make_envs(short(tmp_path), 1, overlap=False)
    loaded, saved = sac_continuous.load_agent(folder, envs).state_dict(), torch.load(folder / "agent.pt")
    assert all(torch.equal(value, saved[name]) for name, value in loaded.items())
    envs.close()


@pytest.mark.filterwarnings("ignore:The bundled model does not know")
def test_sac_takes_any_id_and_reward(tmp_path):
    """The ant falls: its episodes end at different times. Success is not known, and is not reported."""
    prompt = {"prompt": "an ant robot"}
    for changes in (prompt, {"reward": "reward_models:PixelReward", "reward_kwargs": '{"batch_size": 8}'}):
        args = short(tmp_path / next(iter(changes)), **changes, exp_name="any")
        args.env_id, args.episode_length, args.learning_starts, args.total_timesteps = "Ant-v5", 20, 40, 60
        args.selection_frequency, args.checkpoint_frequency = 50, 30
        folder = sac_continuous.main(args)
        result = json.loads((folder / "result.json").read_text())
        assert result["timesteps"] == 60
        assert not {"success", "success_fraction"} & set(result)
        assert "success_fraction" not in (folder / "learning_curve.csv").read_text()
    with pytest.raises(ValueError, match="`learning_starts` must be at least 16000, two episodes of every environment"):
        sac_continuous.main(sac_continuous.Args(env_id="Ant-v5", prompt="an ant robot"))


@pytest.mark.slow
def test_sac_that_died_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sac_continuous, "play_episodes", lambda *_, **__: 1 / 0)  # at step 500
        with pytest.raises(ZeroDivisionError):
            sac_continuous.main(short(tmp_path))
    (folder,) = tmp_path.iterdir()
    before = torch.load(folder / "checkpoint.pt", weights_only=False)
    assert before["global_step"] == 400
    assert sac_continuous.main(resumed(folder, capture_video=False)) == folder
    after = torch.load(folder / "checkpoint.pt", weights_only=False)
    assert after["global_step"] == 600
    stored = len(before["buffer"]["rewards"])
    assert stored in (200, 400)  # with overlap, rewards may have come or not
    for name in ("observations", "actions", "rewards"):
        torch.testing.assert_close(after["buffer"][name][:stored], before["buffer"][name])


@pytest.mark.slow
def test_sac_resumes_to_the_bit(tmp_path, monkeypatch):
    """Two trainings resumed from one checkpoint are the same; one resumed after its end writes the same checkpoint."""
    with monkeypatch.context() as patch:
        patch.setattr(sac_continuous, "play_episodes", lambda *_, **__: 1 / 0)  # at step 500
        with pytest.raises(ZeroDivisionError):
            sac_continuous.main(short(tmp_path / "one"))
    (one,) = (tmp_path / "one").iterdir()
    other = shutil.copytree(one, tmp_path / "other")
    ends = []
    for folder in (one, other, other):
        sac_continuous.main(resumed(folder))
        ends.append(torch.load(folder / "checkpoint.pt", weights_only=True))
    for end in ends[1:]:
        assert end["updates"] == ends[0]["updates"] > 0
        for name in ("agent", "optimizer", "buffer", "torch", "curve"):
            torch.testing.assert_close(end[name], ends[0][name], rtol=0, atol=0, equal_nan=True)


def test_a_finished_run_of_sac_is_lengthened(tmp_path, monkeypatch):
    """By the command. Other changes are refused, and so are fewer steps."""
    folder = sac_continuous.main(short(tmp_path, capture_video=False))
    program = [sac_continuous.__file__, "--resume", str(folder)]
    for changes, message in {
        ("--seed", "5"): "`seed` is 5, was 1. Start a new run for that.",
        ("--total-timesteps", "599"): "`total_timesteps` is 599, was 600. Start a new run for that.",
    }.items():
        monkeypatch.setattr(sys, "argv", [*program, *changes])
        with pytest.raises(ValueError, match=message):
            runpy.run_path(sac_continuous.__file__, run_name="__main__")
    monkeypatch.setattr(sys, "argv", [*program, "--total-timesteps", "800"])
    runpy.run_path(sac_continuous.__file__, run_name="__main__")
    result = json.loads((folder / "result.json").read_text())
    assert (result["timesteps"], result["args"]["total_timesteps"], result["args"]["hidden"]) == (800, 800, 8)
    curve = (folder / "learning_curve.csv").read_text().splitlines()
    assert {"200", "400", "600", "800"} <= {row.split(",")[0] for row in curve}


def test_sac_updates_the_actor_at_every_second_update_of_the_q_functions(tmp_path, monkeypatch):
    seen = []

    class Agent(sac_continuous.Agent):
        def losses(self, *arguments):
            nets = (self.actor, self.qf, self.qf_target)
            seen.append([nn.utils.parameters_to_vector(net.parameters()).detach().clone() for net in nets])
            return super().losses(*arguments)

    monkeypatch.setattr(sac_continuous, "Agent", Agent)
    sac_continuous.main(short(tmp_path, capture_video=False))
    assert len(seen) == 20
    for update, (before, after) in enumerate(pairwise(seen), 1):
        changed = [not torch.equal(one, other) for one, other in zip(before, after, strict=True)]
        assert changed == [update % 2 == 0, True, True]


def test_the_q_functions_are_independent_and_their_first_layers_see_observation_and_action():
    args = sac_continuous.Args(hidden=8, bfloat16=False)
    qf = sac_continuous.SoftQNetwork(3 + 2, args)
    observations, actions = torch.randn(4, 3), torch.randn(4, 2)
    for i in range(2):
        weights = [value for name, value in qf.state_dict().items() if name.startswith(f"layers.{i}.")]
        x = torch.cat((observations, actions), 1)
        for weight, bias in ((weights[0], weights[1]), (weights[2], weights[3])):
            x = (x @ weight.T + bias).clamp_min(0)
        torch.testing.assert_close(qf(observations, actions)[:, i], (x @ weights[4].T + weights[5])[:, 0])


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


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the kernel does not list the CPU's features here")
def test_bfloat16_is_the_default_where_the_cpu_multiplies_in_it():
    features = set(Path("/proc/cpuinfo").read_text().split())
    expected = bool({"avx512_bf16", "amx_bf16"} & features) and hasattr(torch.cpu, "get_capabilities")
    assert sac_continuous.Args().bfloat16 == expected


def test_sac_losses_are_one_graph_for_a_gpu_and_train_the_q_functions_by_their_own_loss_only():
    torch.manual_seed(0)
    envs = sac_continuous.make_envs(sac_continuous.default_args(MOUNTAIN_CAR), 1, overlap=False)
    agent = sac_continuous.Agent(envs, sac_continuous.default_args(MOUNTAIN_CAR))
    envs.close()
    batch = Batch(torch.randn(8, 2), torch.rand(8, 1), torch.randn(8, 2), torch.rand(8), torch.zeros(8))
    compiled = torch.compile(agent.losses, fullgraph=True, backend="aot_eager")
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "command_line",
    [
        "sac_continuous.py --env-id VLMRM/MountainCarContinuous-v0 --no-textured --num-envs 1 --learning-starts 400",
        "dqn_cartpole.py --learning-starts 200 --num-envs 1",
    ],
)
def test_track_mirrors_tensorboard(command_line, tmp_path):
    example, *arguments = command_line.split()
    script = Path(sac_continuous.__file__).parent / example
    arguments += ["--track", "--no-capture-video", "--total-timesteps", "400", "--eval-episodes", "1"]
    environment = {**os.environ, "WANDB_MODE": "offline"}
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (sent,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"charts/vlm_return" in sent.read_bytes()


def test_sac_settings_follow_the_environment_and_flags_have_the_last_word():
    assert sac_continuous.default_args(MOUNTAIN_CAR).exploration_hold == 30
    assert sac_continuous.default_args("VLMRM/Humanoid-kneel-v0").gamma == 0.95


def test_the_flags_of_sac_show_the_settings_of_humanoids():
    """The defaults that `--help` shows and those of `vlmrm-gym train` are the same."""
    assert sac_continuous.default_args("VLMRM/Humanoid-stand-v0") == sac_continuous.Args()
    assert sac_continuous.default_args("Ant-v5") == sac_continuous.Args(env_id="Ant-v5")


def test_mountain_car_trains_with_the_settings_of_the_benchmarks():
    """As `benchmarks/RESULTS.md` says."""
    expected = {"total_timesteps": 40_000, "num_envs": 8, "gamma": 0.99, "hidden": 128, "exploration_hold": 30}
    expected |= {"policy_lr": 6e-4, "q_lr": 6e-4, "batch_size": 256, "updates_per_step": 0.5, "learning_starts": 4_800}
    args = vars(sac_continuous.default_args(MOUNTAIN_CAR))
    assert {name: args[name] for name in expected} == expected


def test_only_training_episodes_start_near_the_goal(tmp_path, monkeypatch):
    """The agent is chosen and evaluated from the usual initial state."""
    make, probabilities = sac_continuous.make_vector_env, []

    def make_and_note(*positional, **options):
        envs = make(*positional, **options)
        probabilities.append(envs.unwrapped.single_env.start_near_goal)
        return envs

    monkeypatch.setattr(sac_continuous, "make_vector_env", make_and_note)
    changes = {"episode_length": 5, "learning_starts": 10, "total_timesteps": 12, "capture_video": False}
    sac_continuous.main(short(tmp_path, env_id="VLMRM/Humanoid-stand-v0", start_near_goal=0.5, **changes))
    assert probabilities == [0.5, 0.0, 0.0]


def test_sac_drops_no_flag_in_silence(tmp_path):
    """A camera may be a number, as in MuJoCo."""
    given = sac_continuous.Args(env_id="Ant-v5", reward="m:f", camera="0", model="other", reward_alpha=0.5)
    expected = {"reward": "m:f", "camera": 0, "model": "other", "alpha": 0.5, "device": "auto"}
    assert sac_continuous.task_options(given) == expected
    own = {"reward": "reward_models:PixelReward", "reward_kwargs": '{"batch_size": 8}'}
    for changes, message in (
        ({**own, "reward_alpha": 0.5}, "`reward` and `alpha` cannot both be passed"),
        ({**own, "reward": None}, "`reward_kwargs` "),
    ):
        with pytest.raises(TypeError, match=message):
            sac_continuous.make_envs(short(tmp_path, **changes), 1, overlap=False)


def test_sac_refuses_to_learn_from_nothing(tmp_path):
    with pytest.raises(ValueError, match="`learning_starts` must be at least 400, two episodes of every environment"):
        sac_continuous.main(sac_continuous.Args(env_id=MOUNTAIN_CAR, num_envs=1, learning_starts=399))
    with pytest.raises(ValueError, match="`resume` must be the folder of a run that has reached a checkpoint"):
        sac_continuous.main(sac_continuous.Args(resume=tmp_path))


@pytest.mark.parametrize(
    "state", [{"args": {}}, {"format": 2, "args": {"alpha": 0.1}}, {"format": 2, "args": {"runs_folder": Path("runs")}}]
)
def test_sac_refuses_a_checkpoint_of_an_earlier_version(state, tmp_path):
    """One without a format, one with an argument of another name, and one with objects in it."""
    torch.save(state, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match="`resume` must be a run of this version"):
        sac_continuous.main(sac_continuous.Args(resume=tmp_path))


@pytest.mark.parametrize("load", [load_args, load_checkpoint])
@pytest.mark.parametrize("contents", [b"", b"not a checkpoint", b"PK\x03\x04 cut off"])
def test_a_damaged_checkpoint_is_refused(load, contents, tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(contents)
    with pytest.raises(ValueError, match=r"`resume` must be a run of this version.*checkpoint\.pt is damaged or of"):
        load(sac_continuous.Args, tmp_path, sac_continuous.CHECKPOINT_FORMAT)


@pytest.mark.slow
def test_the_benchmark_of_sac_prints_rates():
    program = Path(__file__).parents[2] / "benchmarks" / "sac_updates.py"
    command = [sys.executable, str(program), "--rounds", "1", "--steps", "100", "--env-id", MOUNTAIN_CAR]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    name, updates, steps = done.stdout.splitlines()[-1].strip("| ").split(" | ")
    assert name == "this"
    assert float(updates) > 0
    assert float(steps) > 0
    refused = subprocess.run([*command, "--against", "no-commit"], capture_output=True, text=True)
    assert "`against` must be a commit of" in refused.stderr
    assert "Received 'no-commit'" in refused.stderr


@pytest.mark.filterwarnings("ignore:rich is experimental")
def test_what_a_stable_baselines3_user_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sb3_sac.main(sb3_sac.Args(env_id=MOUNTAIN_CAR, num_envs=1, total_timesteps=420))
    assert (tmp_path / "runs" / "SAC_1" / "model.zip").exists()


@pytest.mark.filterwarnings("ignore:The bundled model does not know this scene")
def test_an_environment_of_ones_own(capsys):
    runpy.run_module("own_env", run_name="__main__")
    assert capsys.readouterr().out.strip()
