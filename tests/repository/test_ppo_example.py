"""examples/ppo_continuous.py learns from rewards of unfinished episodes, and leaves what it promises."""

import json

import gymnasium as gym
import numpy as np
import ppo_continuous
import pytest
import torch
from conftest import LIBRARIES_WARN
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import vlmrm_gym

pytestmark = [pytest.mark.slow, LIBRARIES_WARN]
MOUNTAIN_CAR = "VLMRM/MountainCarContinuous-v0"


def test_a_short_run_writes_events_an_agent_and_a_result(tmp_path):
    args = ppo_continuous.Args(
        runs_folder=tmp_path, total_timesteps=90, num_envs=2, num_steps=15, selection_frequency=2, eval_episodes=2
    )
    folder = ppo_continuous.main(args)
    result = json.loads((folder / "result.json").read_text())
    assert 0 <= result["success"] <= 1
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("greedy/vlm_return")] == [60, 90]
    assert [event.step for event in events.Scalars("losses/value_loss")] == [30, 60, 90]
    assert torch.load(folder / "agent.pt")["count"].item() == pytest.approx(90, abs=0.1)


def test_rewards_of_a_rollout_are_those_of_scoring_every_step():
    """Episodes of 6 steps over rollouts of 8: some begin in one rollout and end in the next."""
    options = {"episode_length": 6, "autoreset_mode": "SameStep"}
    late = gym.make_vec(MOUNTAIN_CAR, 2, **options)
    now = gym.make_vec(MOUNTAIN_CAR, 2, scoring="step", **options)
    for envs in (late, now):
        envs.reset(seed=3)
    late.action_space.seed(0)
    for _ in range(3):
        kept, expected, first = np.full((8, 2), np.nan, np.float32), [], None
        for step in range(8):
            actions = late.action_space.sample()
            infos = late.step(actions)[4]
            first = infos["vlm_step_index"].copy() if step == 0 else first
            ppo_continuous.keep(kept, first, infos)
            expected.append(now.step(actions)[1])
        ppo_continuous.keep(kept, first, late.flush())
        np.testing.assert_allclose(kept, expected, atol=1e-5)
    late.close(), now.close()


def test_returns_of_flushed_episodes_are_counted():
    """As far as rewards that a flush brings are part of an episode that ends later."""
    from vlmrm_gym.data.statistics import EpisodeStatistics

    envs = EpisodeStatistics(gym.make_vec(MOUNTAIN_CAR, 1, episode_length=4, autoreset_mode="SameStep"))
    envs.reset(seed=0)
    rewards = []
    for step in range(4):
        infos = envs.step(np.ones((1, 1), np.float32))[4]
        late = vlmrm_gym.read_late(infos if step == 3 else envs.flush())
        rewards += [float(r) for one in late for r in one.rewards]
    assert len(rewards) == 4
    assert infos["scored_episode"]["r"][0] == pytest.approx(sum(rewards), abs=1e-5)
    envs.close()


def test_statistics_are_merged_exactly():
    numbers = np.random.default_rng(0).normal(3, 2, (50, 4))
    stats = [0.0, 0.0, 0.0]
    for part in numbers:
        stats = ppo_continuous.merge(stats, part)
    assert stats == pytest.approx([200, numbers.mean(), numbers.var()])
