"""examples/furl.py tunes a head to successes, relabels and learns, and leaves what it promises."""

import copy
import json

import furl
import numpy as np
import pytest
import torch
from conftest import LIBRARIES_WARN
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vlmrm_gym.tasks import REGISTERED
from vlmrm_gym.tasks.mountain_car import MountainCar

pytestmark = [pytest.mark.slow, LIBRARIES_WARN]


def short(folder, **changes):
    settings = {
        "runs_folder": folder,
        "num_envs": 2,
        "total_timesteps": 120,
        "learning_starts": 60,
        "tune_frequency": 40,
        "gradient_steps": 20,
        "gap": 2,
        "updates_per_step": 0.2,
        "batch_size": 16,
        "hidden": 8,
        "eval_episodes": 2,
    }
    return furl.Args(**(settings | changes))


@pytest.fixture
def near_the_flag(monkeypatch):
    """Episodes of 20 steps; every other one begins at the flag, and succeeds, the others in the valley."""
    reset = MountainCar.reset

    def near(env, **options):
        observation, info = reset(env, **options)
        env.episodes = getattr(env, "episodes", 0) + 1
        if env.episodes % 2:
            env.state = np.array([0.38, 0.03], dtype=np.float32)
            observation = env.state.copy()
        return observation, info

    monkeypatch.setattr(MountainCar, "reset", near)
    task = copy.copy(REGISTERED[furl.Args.env_id])
    object.__setattr__(task, "episode_length", 20)
    monkeypatch.setitem(REGISTERED, task.id, task)


def test_a_short_run_pays_clip_tunes_and_relabels(tmp_path, monkeypatch, near_the_flag):
    """Before the first tuning a reward is 0.05 times the cosine similarity, plus 1 at the flag; stored rewards are of
    the newest head after each.
    """
    added, stored = [], []

    class ReplayBuffer(furl.ReplayBuffer):
        def add(self, *arguments):
            added.append(arguments[-1])
            super().add(*arguments)

        def relabel(self, head):
            super().relabel(head)
            everything = {name: column[: len(self)] for name, column in self.state_dict().items() if name in COLUMNS}
            stored.append((head, head.version, {name: column.clone() for name, column in everything.items()}))

    COLUMNS = ("rewards", "features", "task_rewards")
    monkeypatch.setattr(furl, "ReplayBuffer", ReplayBuffer)
    folder = furl.main(short(tmp_path))

    first = next(infos for infos in added if "_vlm_rewards" in infos and infos["_vlm_rewards"].any())
    goal = furl.vlmrm_gym.CLIPReward("tiny", prompt=REGISTERED[furl.Args.env_id].prompt).head.goal.cpu().numpy()
    successes = np.stack([infos["success"] for infos in added[:20]], 1)
    assert successes[:, -1].all()
    assert not successes[:, 0].any()
    for i in range(2):
        expected = 0.05 * first["vlm_features"][i][:, 0] @ goal + successes[i]
        np.testing.assert_allclose(first["vlm_rewards"][i], expected, atol=1e-5)

    assert [version for _, version, _ in stored] == [3, 4]  # there is no failure at step 40
    for _, _, columns in stored[-1:]:
        head = furl.Head(torch.from_numpy(goal), short(tmp_path))
        head.load_state_dict(torch.load(folder / "head.pt"))
        with torch.no_grad():
            expected = head(columns["features"]) + columns["task_rewards"]
        torch.testing.assert_close(columns["rewards"], expected)

    result = json.loads((folder / "result.json").read_text())
    assert (result["timesteps"], len(result["success"])) == (120, 5)
    assert result["training_successes"] == 4
    assert torch.load(folder / "agent.pt")["actor.0.weight"].shape == (8, 2)
    scalars = EventAccumulator(str(folder)).Reload().Tags()["scalars"]
    assert {"tuning/loss", "tuning/success_cosine", "greedy/success"} <= set(scalars)


def test_an_episode_is_a_success_up_to_the_first_loss():
    for success, threshold, count in [([0, 1, 0, 1], 0.1, 2), ([0, 1, 1], 0.1, 3), ([0, 1, 1], 1.0, 0)]:
        assert furl.count_success_steps(np.array(success, dtype=bool), threshold) == count


def test_tuning_raises_the_later_states_of_successes_above_earlier_ones_and_failures():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    directions = np.eye(8, dtype=np.float32)
    args = furl.Args(gap=5, gradient_steps=15, batch_size=16)
    tuner = furl.Tuner(furl.Head(torch.from_numpy(directions[0]), args), args)
    noise = rng.normal(0, 0.05, (3, 10, 1, 8)).astype(np.float32)
    episode = np.where(np.arange(10)[:, None, None] < 5, directions[1], directions[2]) + noise[0]
    tuner.add(episode, np.arange(10) >= 5, 0.1)
    assert tuner.tune() == {}  # there is no failure yet
    tuner.add(directions[3] + noise[1], np.zeros(10, dtype=bool), 0.1)
    first = tuner.tune()
    last = [tuner.tune() for _ in range(2)][-1]
    assert first["loss"] > 10 * last["loss"]
    assert last["success_cosine"] > last["failure_cosine"] + 0.1
    early, late = (tuner.head.cosine(torch.from_numpy(directions[i][None, None] + noise[2])) for i in (1, 2))
    assert (late > early).all()


def test_a_task_without_a_success_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`env_id` must be a task with a prompt and a success"):
        furl.main(short(tmp_path, env_id="VLMRM/Humanoid-v0"))
