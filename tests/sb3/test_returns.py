"""Returns of episodes, which are reported when their rewards have arrived: in logs, evaluations and algorithms."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from counting_env import Counting
from sb3_contrib import ARS, MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked_policy
from sb3_helpers import off_policy, on_policy
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from vlmrm_gym.sb3 import ActionRepeatNoise, RunningNormExtractor, ScoredReturnCallback


def returns_of(bases, first_episode):
    """The returns of the finished episodes of environments, from one on."""
    found = []
    for base in bases:
        totals = {}
        for episode, reward in zip(base.episodes, base.expected_rewards, strict=True):
            totals.setdefault(episode, []).append(reward)
        found += [sum(own) for i, own in totals.items() if i >= first_episode and len(own) == base.lengths[0]]
    return sorted(found)


def test_aborted_episodes_are_not_reported_and_rewards_are_nan_again_after_a_reset_in_a_rollout(counting):
    envs, _ = counting([[7]])
    on_policy(PPO, envs, 10)  # begins a rollout
    envs.reset()
    lengths = []
    for step in range(24):
        if step == 3:
            envs.reset()
        _, rewards, _, (info,) = envs.step(np.zeros(1, dtype=int))
        assert np.isnan(rewards).all()
        lengths += [info["episode"]["l"]] if "episode" in info else []
    assert lengths == [7, 7, 7]


def test_episodes_are_reported_once_their_rewards_have_arrived(counting):
    envs, bases = counting([[3], [2, 5]], overlap=True)
    envs.reset()
    summaries = [[], []]
    for _ in range(40):
        for own, info in zip(summaries, envs.step(np.zeros(2, dtype=int))[3], strict=True):
            own.extend([info["episode"]] if "episode" in info else [])
    for base, own in zip(bases, summaries, strict=True):
        expected, begun = [], 0
        for length in base.lengths * 20:
            expected.append((float(sum(base.expected_rewards[begun : begun + length])), length, 0.5 * length))
            begun += length
        assert len(own) >= 9
        assert [(one["r"], one["l"], one["task_return"]) for one in own] == expected[: len(own)]


def test_returns_of_the_environments_own_reward_are_not_reported(counting):
    make = lambda lengths, first: gym.wrappers.RecordEpisodeStatistics(Counting(lengths, first))  # noqa: E731
    envs, _ = counting([[5]], make, overlap=True)
    envs.reset()
    reported = [envs.step(np.zeros(1, dtype=int))[3][0].get("episode") for _ in range(40)]
    returns = [episode["r"] for episode in reported if episode]
    assert returns
    assert 2.5 not in returns  # 5 steps of 0.5


def test_evaluations_wait_for_rewards_that_overlap(counting):
    """Also where a training's episode has not been reported yet when the evaluation begins."""
    envs, bases = counting([[1], [1]], reward="reward_models:SlowReward", overlap=True)
    envs.reset()
    envs.step(np.zeros(2, dtype=int))
    model = MaskablePPO("MlpPolicy", envs, device="cpu")
    played = bases[0].episode + 1
    returns, lengths = evaluate_masked_policy(
        model, envs, use_masking=False, n_eval_episodes=6, return_episode_rewards=True
    )
    assert lengths == [1] * 6
    assert sorted(returns) == returns_of(bases, played)


def test_ars_learns_from_vlm_returns(counting):
    """It has no buffer: it plays episodes by evaluate_policy, and learns from their returns."""
    envs, bases = counting([[5], [5]], overlap=True)
    model = ARS("LinearPolicy", envs, n_delta=2, n_eval_episodes=2, device="cpu").learn(30)
    assert sorted(episode["r"] for episode in model.ep_info_buffer) == returns_of(bases, 0)
    assert torch.isfinite(model.weights).all()


@pytest.mark.filterwarnings("ignore:The environment is already wrapped with a `Monitor`")  # Stable-Baselines3
def test_evaluations_under_a_vec_monitor_are_refused(counting):
    """Its returns would be NaN: ARS would learn from them, and EvalCallback would keep no model."""
    envs, _ = counting([[5], [5]])
    seen = VecNormalize(VecMonitor(envs))
    message = r"`env` must not have a VecMonitor around it .*Leave it out: .*scoring=\"step\""
    with pytest.raises(ValueError, match=message):
        evaluate_policy(off_policy(DQN, envs), seen)
    with pytest.raises(ValueError, match=message):
        ARS("LinearPolicy", seen, n_delta=2, device="cpu").learn(30)


@pytest.mark.filterwarnings("ignore:The environment is already wrapped with a `Monitor`")  # Stable-Baselines3
def test_only_evaluations_without_returns_are_warned_of(counting):
    """Others that ask for a monitor would take the return of an earlier episode, or none: once.

    Not in a training, on its own environments, and under a VecMonitor where rewards come at every step.
    """
    envs, _ = counting([[5], [5]], overlap=True)
    with pytest.warns(UserWarning, match=r"Rewards arrive after the step: .*Evaluate with evaluate_policy, or"):
        assert envs.env_is_wrapped(Monitor) == [False, False]
    assert envs.env_is_wrapped(Monitor) == [False, False]  # warnings are errors here
    (envs, _), (others, _) = counting([[5], [5]]), counting([[5], [5]])
    callbacks = [EvalCallback(one, eval_freq=10, n_eval_episodes=2, verbose=0) for one in (envs, others)]
    off_policy(DQN, envs).learn(60, callback=callbacks)
    assert np.isfinite([one.last_mean_reward for one in callbacks]).all()
    by_step, _ = counting([[5], [5]], scoring="step")
    assert np.isfinite(evaluate_policy(off_policy(DQN, by_step), VecMonitor(by_step), n_eval_episodes=4)[0])


def test_what_is_logged_and_evaluated(make_envs, tmp_path):
    envs = make_envs("vlmrm_gym:VLMRM/CartPole-v1", num_envs=2, seed=0, episode_length=10)
    assert envs.success_threshold == 1.0
    model = off_policy(DQN, envs)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(120, callback=ScoredReturnCallback(), log_interval=4)
    model.logger.close()
    header, *_ = (tmp_path / "progress.csv").read_text().splitlines()
    for name in ("ep_rew_mean", "vlm_return", "task_return", "success_fraction", "success_rate"):
        assert f"rollout/{name}" in header.split(",")
    assert envs.render().shape[2] == 3
    returns, lengths = evaluate_policy(model, envs, n_eval_episodes=4, return_episode_rewards=True)
    assert lengths == [10] * 4
    assert all(0 < value <= 10 for value in returns)


def test_vec_monitor_does_not_hide_scored_episodes(counting, tmp_path):
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        envs = VecMonitor(counting([[10]])[0])
    model = off_policy(DQN, envs)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    with pytest.warns(UserWarning, match="Rewards arrive after the step: VecMonitor"):
        model.learn(40, callback=ScoredReturnCallback(), log_interval=2)
    model.logger.close()
    assert "rollout/task_return" in (tmp_path / "progress.csv").read_text()


def test_observations_are_normalized_by_training_batches_in_the_order_of_their_space(rng):
    space = gym.spaces.Box(-np.inf, np.inf, (2, 3))
    normalized = RunningNormExtractor(space)
    batches = [torch.from_numpy(rng.normal([5, 0, 900], [1, 1e-2, 50], (64, 2, 3))).float() for _ in range(20)]
    for batch in batches:
        normalized(batch)
    normalized.eval()
    every = torch.cat(batches).flatten(1)
    expected = (every - every.mean(0)) / every.std(0)
    torch.testing.assert_close(normalized(torch.cat(batches)), expected.clamp(-10, 10), atol=0.1, rtol=0.1)
    torch.testing.assert_close(normalized(torch.full((1, 2, 3), 1e9)), torch.full((1, 6), 10.0))
    space = gym.spaces.Dict(a=gym.spaces.Box(-np.inf, np.inf, (2, 2)), b=gym.spaces.Discrete(3))
    a, b = (torch.from_numpy(rng.normal(size=shape)).float() for shape in ((8, 2, 2), (8, 3)))
    of_dictionaries = RunningNormExtractor(space)
    one_array = RunningNormExtractor(gym.spaces.Box(-np.inf, np.inf, (7,)))
    torch.testing.assert_close(of_dictionaries({"b": b, "a": a}), one_array(torch.cat([a.flatten(1), b], 1)))


def test_action_repeat_noise_repeats_changes_and_ends():
    noise = ActionRepeatNoise(2, sigma=3, hold=4, steps=10)
    drawn = np.stack([noise() for _ in range(12)])
    assert drawn.dtype == np.float32
    np.testing.assert_array_equal(drawn[:4], drawn[[0] * 4])
    np.testing.assert_array_equal(drawn[4:8], drawn[[4] * 4])
    assert len(np.unique(drawn[[0, 4, 8]])) == 6
    assert (np.abs(drawn) <= 3).all()
    np.testing.assert_array_equal(drawn[10:], 0)
    for parameter, wrong in {"size": 0, "sigma": -1, "hold": 0, "steps": -4}.items():
        with pytest.raises(ValueError, match=rf"`{parameter}` must be .*\. Received {wrong}"):
            ActionRepeatNoise(**{"size": 2, parameter: wrong})
