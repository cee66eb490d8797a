"""An environment whose frames encode a count of its steps."""

import gymnasium as gym
import numpy as np


class Counting(gym.Env):
    """Episodes of given lengths, in turn. The frame encodes a count of all steps, from `first` on, see `PixelReward`.

    Args:
        lengths: Of the episodes. The last step terminates those of odd length, and truncates those of even length.
        first: What the first frame encodes.
        fails_at: The step, counted over all episodes, that raises.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, lengths=(3,), first=0, fails_at=None, size=2, continuous=False):
        self.observation_space = gym.spaces.Box(0, 2**24, (1,), np.float64)
        self.action_space = gym.spaces.Box(-1, 1, (2,), np.float32) if continuous else gym.spaces.Discrete(2)
        self.lengths, self.count, self.fails_at, self.size = list(lengths), first, fails_at, size
        self.episode, self.step_of_episode, self.steps = -1, 0, 0
        self.expected_rewards = []
        """The count after each step: the reward that `PixelReward` gives, in order."""
        self.episodes = []
        """The episode of each step."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.step_of_episode = 0
        self.count += 1
        return np.array([self.count], dtype=np.float64), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.fails_at:
            raise ZeroDivisionError("the environment's own bug")
        self.count += 1
        self.step_of_episode += 1
        self.expected_rewards.append(self.count)
        self.episodes.append(self.episode)
        length = self.lengths[self.episode % len(self.lengths)]
        over = self.step_of_episode == length
        odd = length % 2 == 1
        return np.array([self.count], dtype=np.float64), 0.5, over and odd, over and not odd, {}

    def render(self):
        frame = np.zeros((self.size, self.size, 3), dtype=np.uint8)
        frame[0, 0] = self.count % 256, self.count // 256 % 256, self.count // 65536
        return frame


class Paid(Counting):
    """`Counting` whose own reward is the count modulo 7."""

    def step(self, action):
        observation, _, *results = super().step(action)
        return observation, float(self.count % 7), *results


class CountingDict(Counting):
    """`Counting` whose observations are dictionaries: the count, a number, and an array of bits."""

    def __init__(self, lengths=(3,), first=0, continuous=False):
        super().__init__(lengths, first, continuous=continuous)
        self.observation_space = gym.spaces.Dict(
            count=gym.spaces.Box(0, 2**24, (1,), np.float32),
            phase=gym.spaces.Discrete(5),
            bits=gym.spaces.MultiBinary(3),
        )

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return self.dictionary(observation), info

    def step(self, action):
        observation, *results = super().step(action)
        return self.dictionary(observation), *results

    @staticmethod
    def dictionary(observation):
        """The observation for a count."""
        (count,) = observation.astype(int)
        bits = np.array([count >> bit & 1 for bit in range(3)], dtype=np.int8)
        return {"count": observation.astype(np.float32), "phase": count % 5, "bits": bits}


def take(received, infos):
    """Add the rewards that have arrived to those of each environment: of its oldest transitions without rewards."""
    for i in np.flatnonzero(infos["_vlm_rewards"]):
        assert infos["vlm_reward_start"][i] == len(received[i])
        received[i] += infos["vlm_rewards"][i].tolist()
