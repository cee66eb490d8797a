"""The other examples run as they are, and leave what they promise."""

import csv
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import imageio.v3 as iio
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import sac_continuous
import sb3_sac

from vlmrm_gym.replay import Batch

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

MOUNTAIN_CAR = "VLMRM/MountainCarContinuous-v0"


def short(tmp_path, **changes):
    return sac_continuous.Args(
        env_id=MOUNTAIN_CAR,
        textured=False,
        runs_folder=tmp_path,
        num_envs=1,
        total_timesteps=600,
        learning_starts=400,
        updates_per_step=0.1,
        hidden=8,
        batch_size=16,
        selection_frequency=500,
        checkpoint_frequency=200,
        eval_episodes=2,
        **changes,
    )


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


def test_sac_that_died_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sac_continuous, "play", lambda *_, **__: 1 / 0)  # at step 500
        with pytest.raises(ZeroDivisionError):
            sac_continuous.main(short(tmp_path))
    (folder,) = tmp_path.iterdir()
    before = torch.load(folder / "checkpoint.pt", weights_only=False)
    assert before["global_step"] == 400
    assert sac_continuous.main(sac_continuous.Args(resume=folder, capture_video=False)) == folder
    after = torch.load(folder / "checkpoint.pt", weights_only=False)
    assert after["global_step"] == 600
    stored = len(before["buffer"]["rewards"])
    assert stored in (200, 400)  # with overlap, rewards may have come or not
    for name in ("observations", "actions", "rewards"):
        torch.testing.assert_close(after["buffer"][name][:stored], before["buffer"][name])


def test_sac_losses_are_one_graph_for_a_gpu_and_train_the_q_functions_by_their_own_loss_only():
    torch.manual_seed(0)
    envs = sac_continuous.make_envs(sac_continuous.args_for(MOUNTAIN_CAR), 1, overlap=False)
    agent = sac_continuous.Agent(envs, sac_continuous.args_for(MOUNTAIN_CAR))
    envs.close()
    batch = Batch(torch.randn(8, 2), torch.rand(8, 1), torch.randn(8, 2), torch.rand(8), torch.zeros(8))
    compiled = torch.compile(agent.losses, fullgraph=True, backend="aot_eager")
    losses = []
    for of in (compiled, agent.losses):
        torch.manual_seed(1)
        losses.append(of(batch))
    torch.testing.assert_close(*losses)
    _, actor_loss, _ = losses[1]
    actor_loss.backward()
    assert all(parameter.grad is None for parameter in agent.qf.parameters())
    assert all(parameter.grad is not None for parameter in agent.actor.parameters())


@pytest.mark.parametrize(
    "told",
    [
        "sac_continuous.py --env-id VLMRM/MountainCarContinuous-v0 --no-textured --num-envs 1 --learning-starts 400",
        "dqn_cartpole.py --learning-starts 200 --num-envs 1",
    ],
)
def test_track_sends_what_tensorboard_is_told(told, tmp_path):
    example, *arguments = told.split()
    script = Path(sac_continuous.__file__).parent / example
    arguments += ["--track", "--no-capture-video", "--total-timesteps", "400", "--eval-episodes", "1"]
    environment = {**os.environ, "WANDB_MODE": "offline"}
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (sent,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"charts/vlm_return" in sent.read_bytes()


def test_sac_settings_follow_the_environment_and_flags_have_the_last_word():
    assert sac_continuous.args_for(MOUNTAIN_CAR).exploration_hold == 30
    assert sac_continuous.args_for("VLMRM/Humanoid-kneel-v0").gamma == 0.95


def test_sac_refuses_to_learn_from_nothing(tmp_path):
    with pytest.raises(ValueError, match="`learning_starts` must be at least 400, two episodes of every environment"):
        sac_continuous.main(sac_continuous.Args(env_id=MOUNTAIN_CAR, num_envs=1, learning_starts=399))
    with pytest.raises(ValueError, match="`resume` must be the folder of a run that has reached a checkpoint"):
        sac_continuous.main(sac_continuous.Args(resume=tmp_path))


@pytest.mark.filterwarnings("ignore:rich is experimental")
def test_what_a_stable_baselines3_user_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sb3_sac.main(sb3_sac.Args(env_id=MOUNTAIN_CAR, num_envs=1, total_timesteps=420))
    assert (tmp_path / "runs" / "SAC_1" / "model.zip").exists()


def test_an_environment_of_ones_own(capsys):
    runpy.run_module("own_env", run_name="__main__")
    assert capsys.readouterr().out.strip()
