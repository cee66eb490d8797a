"""The example learns, and leaves what it promises."""

import json
import sys
from pathlib import Path

import imageio.v3 as iio
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import dqn_cartpole

from vlmrm_gym.tasks import CART_POLE_TRAINING
from vlmrm_gym.training.config import RLConfig

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.parametrize(("overlap", "learning_starts"), [(False, 40), (True, 80)])
def test_a_short_run_writes_curve_video_events_and_result(tmp_path, overlap, learning_starts):
    args = dqn_cartpole.Args(
        runs_folder=tmp_path,
        total_timesteps=120,
        num_envs=2,
        overlap=overlap,
        learning_starts=learning_starts,
        episode_length=20,
        selection_frequency=50,
        eval_episodes=3,
    )
    folder = dqn_cartpole.main(args)
    assert folder.parent == tmp_path
    result = json.loads((folder / "result.json").read_text())
    assert result["eval_episodes"] == 3
    assert 0 <= result["success"] <= 1
    assert iio.imread(folder / "learning_curve.png").ndim == 3
    assert iio.imread(folder / "agent.mp4").shape == (20, 472, 600, 3)
    assert (folder / "agent.pt").exists()
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("charts/task_return")] == [40, 40, 80, 80, 120, 120]
    assert [event.step for event in events.Scalars("charts/greedy_vlm_return")] == [50, 100, 120]


def test_a_run_shorter_than_an_episode_still_ends_well(tmp_path):
    args = dqn_cartpole.Args(runs_folder=tmp_path, total_timesteps=5, episode_length=20, eval_episodes=1)
    result = json.loads((dqn_cartpole.main(args) / "result.json").read_text())
    assert -20 <= result["best_greedy_vlm_return"] <= 20


def test_settings_are_those_of_the_training_command():
    """All but `tau`, `learning_starts` and the number of steps, which have their own reasons here."""
    rl, args = RLConfig(**CART_POLE_TRAINING), dqn_cartpole.Args()
    assert (args.num_envs, args.batch_size, args.learning_rate) == (
        rl.n_envs_per_worker,
        rl.batch_size,
        rl.learning_rate,
    )
    assert (args.gamma, args.exploration_fraction) == (rl.gamma, rl.exploration_fraction)
    assert (args.end_e, args.updates_per_step) == (rl.exploration_final_eps, rl.gradient_steps / rl.n_envs_per_worker)


@pytest.mark.parametrize(("overlap", "needed"), [(False, 40), (True, 80)])
def test_learning_before_the_first_rewards_is_refused(tmp_path, overlap, needed):
    args = dqn_cartpole.Args(
        runs_folder=tmp_path, num_envs=2, episode_length=20, overlap=overlap, learning_starts=needed - 1
    )
    with pytest.raises(
        ValueError, match=f"`learning_starts` must be at least {needed}, .* Received {needed - 1}.* `num_envs`"
    ):
        dqn_cartpole.main(args)
    assert not list(tmp_path.iterdir())


def test_the_untrained_agent_does_not_succeed():
    """So that success means something."""
    import torch

    torch.manual_seed(0)
    envs = dqn_cartpole.make_envs(dqn_cartpole.Args(), num_envs=1)
    success, task_return = dqn_cartpole.success_rate(
        dqn_cartpole.QNetwork(envs), episodes=20, episode_length=200, seed=0
    )
    envs.close()
    assert success == 0
    assert task_return < 100


@pytest.mark.slow
def test_the_agent_learns_to_balance_from_the_prompt_alone(tmp_path):
    """One of the seeds that benchmarks/training_seeds.py reports."""
    folder = dqn_cartpole.main(dqn_cartpole.Args(runs_folder=tmp_path, seed=1))
    result = json.loads((folder / "result.json").read_text())
    assert result["success"] == 1.0
