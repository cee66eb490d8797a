"""VLMReward: any environment that can be seen."""

import gymnasium as gym
import numpy as np
import pytest
from conftest import TASK_PROMPT
from gymnasium.envs.registration import EnvSpec

import vlmrm_gym
from vlmrm_gym import CLIPReward
from vlmrm_gym.rendering import make_renderer


def test_rewards_score_what_is_rendered_and_the_base_reward_is_reported():
    """Contract 1 and 7, on an environment that terminates by itself."""
    env = vlmrm_gym.VLMReward(gym.make("CartPole-v1", render_mode="rgb_array"), prompt=TASK_PROMPT)
    score = CLIPReward(prompt=TASK_PROMPT)
    env.reset(seed=0)
    renderer = make_renderer(env.unwrapped, score.size_to_draw)
    terminated = False
    while not terminated:
        _, reward, terminated, _, info = env.step(0)
        assert reward == pytest.approx(score(renderer.render(renderer.capture(env)[None]))[0], abs=1e-6)
        assert reward == pytest.approx(score(env.render()[None])[0], abs=0.02)
        assert info["task_reward"] == 1.0


@pytest.mark.parametrize("env_id", ["MountainCarContinuous-v0", "Acrobot-v1", "FrozenLake-v1"])
@pytest.mark.filterwarnings("ignore:The bundled model does not know")
def test_observations_dynamics_and_seeding_stay_the_environments(env_id):
    """Contract 9."""
    base = gym.make(env_id, render_mode="rgb_array")
    env = vlmrm_gym.VLMReward(gym.make(env_id, render_mode="rgb_array"), prompt="reach the goal")
    np.testing.assert_array_equal(base.reset(seed=5)[0], env.reset(seed=5)[0])
    base.action_space.seed(5)
    for _ in range(20):
        action = base.action_space.sample()
        expected, task_reward, terminated, truncated, _ = base.step(action)
        observation, _, *ends, info = env.step(action)
        np.testing.assert_array_equal(observation, expected)
        assert ends == [terminated, truncated]
        assert info["task_reward"] == task_reward
        if terminated or truncated:
            break
    base.close()
    env.close()


def test_spec_of_a_wrapped_environment_makes_it_again():
    env = vlmrm_gym.VLMReward(gym.make("CartPole-v1", render_mode="rgb_array"), prompt=["an upright pole", "balance"])
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    env.reset(seed=0), again.reset(seed=0)
    assert env.step(1)[1] == again.step(1)[1]


def test_a_registered_task_renders_even_if_told_not_to():
    """It has to, for its reward; training scripts pass None when they film nothing."""
    env = gym.make("VLMRM/CartPole-v1", render_mode=None)
    env.reset(seed=0)
    env.step(0)
    assert env.render().shape == (400, 600, 3)


def test_task_reward_is_mixed_in_only_by_weight():
    def first_reward(**kwargs):
        env = gym.make("VLMRM/CartPole-v1", **kwargs)
        env.reset(seed=0)
        return env.step(0)[1]

    assert first_reward(task_reward_weight=0.25) == pytest.approx(first_reward() + 0.25)


def test_parameters_reach_the_reward():
    env = gym.make("VLMRM/CartPole-v1", prompt="a fallen pole", baseline="a cart", alpha=0.7, resize_mode="longest")
    score = CLIPReward(prompt="a fallen pole", baseline="a cart", alpha=0.7, resize_mode="longest")
    env.reset(seed=0)
    reward = env.step(0)[1]
    renderer = make_renderer(env.unwrapped, score.size_to_draw)
    assert reward == pytest.approx(score(renderer.render(renderer.capture(env)[None]))[0], abs=1e-6)


@pytest.mark.parametrize("render_mode", [None, "ansi"])
def test_environment_must_render_arrays(render_mode):
    with pytest.raises(
        ValueError, match=rf'`env` must be made with render_mode="rgb_array".*Received render_mode={render_mode!r}'
    ):
        vlmrm_gym.VLMReward(gym.make("FrozenLake-v1", render_mode=render_mode), prompt="reach the goal")


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), "a lot", None])
def test_bad_task_reward_weight(weight):
    with pytest.raises(ValueError, match="`task_reward_weight` must be a finite number"):
        gym.make("VLMRM/CartPole-v1", task_reward_weight=weight)


def test_an_algorithm_people_already_use_trains_on_it():
    from stable_baselines3 import DQN

    model = DQN("MlpPolicy", gym.make("VLMRM/CartPole-v1", episode_length=50), learning_starts=50, device="cpu", seed=0)
    model.learn(120)
    assert model.replay_buffer.rewards[:120].std() > 0
