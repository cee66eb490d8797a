"""Rewards, functions of views and environments as a user writes them."""

from typing import ClassVar

import gymnasium as gym
import numpy as np

from vlmrm_gym import RewardModel


def mean_pixel(frames, scale=1.0):
    return scale * frames.mean((1, 2, 3))


class Brightness:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, frames):
        return np.full(len(frames), self.scale)


class Green(RewardModel):
    """The green channel of a small frame."""

    def encode(self, frames):
        return frames[..., 1].mean((1, 2))[:, None] / 255

    def render_size(self, height, width):
        return 24, 24


class Sized(RewardModel):
    """The mean of frames whose size is a method's, which a worker must send to the process of the environments."""

    def __init__(self, size):
        self.size = size

    def render_size(self, height, width):
        return self.size

    def encode(self, frames):
        return frames.mean((1, 2, 3))[:, None]


def lowest(rewards):
    return rewards.min(1)


def relative(rewards):
    return rewards[:, 0] - rewards.mean()


class Short(gym.Env):
    """Episodes of different lengths."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None, size=1, keys=False, actions=None):
        self.render_mode = render_mode
        one = gym.spaces.Box(-1, 1, (size,), np.float32)
        self.observation_space = gym.spaces.Dict({"a": one, "b": one}) if keys else one
        self.action_space = gym.spaces.MultiBinary(2) if actions else gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 8))
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        return self.observation_space.sample(), 1.0, self.left == 0, False, {}

    def render(self):
        return np.full((16, 16, 3), self.left, np.uint8)


class Blind(Short):
    metadata: ClassVar = {"render_modes": []}


gym.register("Own/Short-v0", Short, max_episode_steps=10)
gym.register("Own/Endless-v0", Short)
gym.register("Own/Blind-v0", Blind, max_episode_steps=10)
