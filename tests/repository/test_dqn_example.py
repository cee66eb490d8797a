"""examples/dqn_cartpole.py learns, and leaves what it promises."""

import json

import dqn_cartpole
import imageio.v3 as iio
import pytest
import torch
from conftest import LIBRARIES_WARN
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

pytestmark = [pytest.mark.slow, LIBRARIES_WARN]


def test_a_short_run_writes_curve_video_events_and_result(tmp_path):
    """It learns once episodes have been scored, although it may from the first step."""
    args = dqn_cartpole.Args(
        runs_folder=tmp_path,
        total_timesteps=120,
        num_envs=2,
        learning_starts=0,
        episode_length=20,
        selection_frequency=50,
        eval_episodes=3,
    )
    folder = dqn_cartpole.main(args)
    assert folder.parent == tmp_path
    result = json.loads((folder / "result.json").read_text())
    assert result["args"]["eval_episodes"] == 3
    assert 0 <= result["success"] <= 1
    assert iio.imread(folder / "learning_curve.png").ndim == 3
    assert iio.imread(folder / "agent.mp4").shape == (20, 472, 600, 3)
    assert (folder / "agent.pt").exists()
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("charts/task_return")] == [40, 40, 80, 80, 120, 120]
    assert [event.step for event in events.Scalars("charts/greedy_vlm_return")] == [50, 100, 120]
    assert [event.step for event in events.Scalars("losses/td_loss")] == [100]


def test_a_run_shorter_than_an_episode_still_ends_well(tmp_path):
    args = dqn_cartpole.Args(
        runs_folder=tmp_path, total_timesteps=5, episode_length=20, eval_episodes=1, capture_video=False
    )
    result = json.loads((dqn_cartpole.main(args) / "result.json").read_text())
    assert -20 <= result["best_greedy_vlm_return"] <= 20


def test_the_untrained_agent_does_not_succeed():
    """So that success means something."""
    torch.manual_seed(0)
    args = dqn_cartpole.Args(eval_episodes=20)
    envs = dqn_cartpole.make_envs(args, num_envs=1)
    means = dqn_cartpole.evaluate(dqn_cartpole.QNetwork(envs), args)
    envs.close()
    assert means["success"] == 0
    assert means["task_return"] < 100


def test_the_agent_learns_to_balance_from_the_prompt_alone(tmp_path):
    """One of the seeds that benchmarks/RESULTS.md reports; every fourth state is scored, so that it takes less time."""
    folder = dqn_cartpole.main(dqn_cartpole.Args(runs_folder=tmp_path, seed=1, score_every=4, capture_video=False))
    result = json.loads((folder / "result.json").read_text())
    assert result["success"] == 1.0
