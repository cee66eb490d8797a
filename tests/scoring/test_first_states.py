"""Rewards that look back see the state of the reset, in every kind of vector environment; clips reach back to it."""

import changing_env
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv
from reward_models import ChecksumReward

import vlmrm_gym
from vlmrm_gym import Progress
from vlmrm_gym.states.classic_control import CartPoleRenderer

KNEEL, STEPS = "VLMRM/Humanoid-kneel-v0", 4


class Brightness(ChecksumReward):
    """The mean of a frame, in which columns weigh differently: it changes with everything that moves."""

    def encode(self, frames):
        columns = frames.mean((1, 3), dtype=np.float64)
        return (columns * np.sin(np.arange(columns.shape[1]))).mean(1, keepdims=True).astype(np.float32)


def humanoid(**options):
    return gym.make(KNEEL, textured=False, episode_length=STEPS, reward=Progress(Brightness()), **options)


def cart_pole():
    return gym.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=STEPS)


def changing():
    return changing_env.make("body moved", when="reset", episode_length=STEPS)


def play_single(env, actions):
    env.reset(seed=3)
    paid = []
    for action in actions:
        _, reward, _, truncated, _ = env.step(action)
        paid.append(reward)
        if truncated:
            env.reset()
    env.close()
    return paid


def play_vector(envs, actions):
    envs.reset(seed=3)
    paid, t = [], 0
    while len(paid) < len(actions):
        infos = envs.step(np.stack([actions[min(t, len(actions) - 1)]] * envs.num_envs))[4]
        t += infos["_vlm_step_index"][0]
        paid += [reward for late in vlmrm_gym.read_late(infos) if late.env == 0 for reward in late.rewards]
    envs.close()
    return paid


def capture(make):
    return lambda: vlmrm_gym.CaptureState(make())


def in_processes(make):
    return AsyncVectorEnv([capture(make)] * 2)


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_humanoids_begin_where_their_reset_put_them(mode):
    actions = np.random.default_rng(0).uniform(-0.4, 0.4, (3 * STEPS, 17)).astype(np.float32)
    envs = gym.make_vec(
        KNEEL, 2, textured=False, episode_length=STEPS, reward=Progress(Brightness()), autoreset_mode=mode
    )
    np.testing.assert_allclose(play_vector(envs, actions), play_single(humanoid(), actions), atol=1e-4)


@pytest.mark.parametrize("make", [cart_pole, changing])
@pytest.mark.parametrize("wrap", [lambda make: [make] * 2, in_processes], ids=["one process", "processes"])
def test_so_do_environments_in_processes_and_those_that_change_their_scene(make, wrap):
    env = make()
    env.action_space.seed(0)
    actions = np.stack([env.action_space.sample() for _ in range(3 * STEPS)])
    reward = Progress(Brightness())
    expected = play_single(vlmrm_gym.VLMReward(env, reward=reward), actions)
    assert np.abs(expected).max() > 0
    envs = vlmrm_gym.VLMRewardVectorEnv(wrap(make), reward=reward)
    np.testing.assert_allclose(play_vector(envs, actions), expected, atol=1e-4)


class StepsInReset(gym.Wrapper):
    def reset(self, **kwargs):
        self.env.reset(**kwargs)
        observation, _, _, _, info = self.env.step(self.action_space.sample())
        return observation, info


def test_a_wrapper_that_steps_in_its_reset_hides_the_first_state():
    inner = AsyncVectorEnv([lambda: StepsInReset(capture(cart_pole)())])
    envs = vlmrm_gym.VLMRewardVectorEnv(inner, reward=Progress(Brightness()))
    with pytest.raises(RuntimeError, match="A wrapper steps environments in their reset"):
        play_vector(envs, np.zeros(2, dtype=int))
    envs.close()


def test_a_clip_of_the_episode_so_far_is_cut_from_kept_states(monkeypatch):
    """A step draws no more frames than a clip has, however long the episode is."""
    drawn = []
    render = CartPoleRenderer.render

    def counting(self, states, changes=None):
        drawn.append(len(states))
        return render(self, states, changes)

    monkeypatch.setattr(CartPoleRenderer, "render", counting)
    reward = type("Prefix", (Brightness,), {"clip_length": 5, "clip": "prefix"})
    reward.encode = lambda self, clips: clips.mean((1, 2, 3, 4), dtype=np.float64)[:, None].astype(np.float32)
    envs = gym.make_vec("VLMRM/CartPole-v1", 1, episode_length=60, scoring="step", reward=reward())
    envs.reset(seed=0)
    for _ in range(60):
        drawn.clear()
        envs.step(np.ones(1, dtype=int))
        assert sum(drawn) <= 5
    envs.close()
