"""Environments with features, whose transitions go to one of the two replay buffers."""

import io
import pickle

import numpy as np
import torch
from counting_env import Paid
from gymnasium.vector import AutoresetMode
from reward_models import TwoFeatures

import vlmrm_gym
from vlmrm_gym.data.replay import ReplayBuffer
from vlmrm_gym.sb3 import DeferredReplayBuffer, VLMVecEnv

WEIGHT = 0.25


class Learning(TwoFeatures):
    """Has no head yet."""

    head = None


def paid(lengths, **options):
    """Vector environments whose frames, features and observations have the same number."""
    bases = [Paid(own, first=10_000 * number) for number, own in enumerate(lengths)]
    options = {"reward": TwoFeatures(), "return_features": True, "task_reward_weight": WEIGHT, **options}
    return vlmrm_gym.VLMRewardVectorEnv([lambda b=b: b for b in bases], **options)


def times(factor):
    """The head that multiplies the number; that of `TwoFeatures` is `times(2)`."""
    return lambda features: factor * features[:, 0, 0] + features[:, 0, 1]


class PlainRun:
    """Steps environments, and adds all to a `ReplayBuffer`."""

    def __init__(self, lengths, capacity, mode=AutoresetMode.NEXT_STEP, **options):
        self.envs = paid(lengths, autoreset_mode=mode, **options)
        self.capacity, self.mode = capacity, mode
        self.buffer = ReplayBuffer(capacity, self.envs)
        self.ended = np.zeros(len(lengths), dtype=bool)
        self.observations, _ = self.envs.reset(seed=0)

    def step(self):
        if self.mode == AutoresetMode.DISABLED and self.ended.any():
            self.observations, infos = self.envs.reset(options={"reset_mask": self.ended})
            self.buffer.add_rewards(infos)
        actions = np.zeros(len(self.ended), dtype=int)
        results = self.envs.step(actions)
        self.buffer.add(self.observations, actions, *results)
        self.observations, self.ended = results[0], results[2] | results[3]

    def flush(self):
        self.buffer.add_rewards(self.envs.flush())

    def reset(self):
        self.observations, infos = self.envs.reset()
        self.buffer.add_rewards(infos)
        self.ended[:] = False

    def save_and_load(self):
        """Into another buffer. Pending transitions are dropped, so that their rewards are ignored."""
        file = io.BytesIO()
        torch.save(self.buffer.state_dict(), file)
        file.seek(0)
        self.buffer = ReplayBuffer(self.capacity, self.envs)
        self.buffer.load_state_dict(torch.load(file, weights_only=True))

    def stored(self):
        """Counts, features and rewards: (N,), (N, V, D), (N,)."""
        columns = {name: column[: len(self.buffer)].numpy() for name, column in self.buffer._columns.items()}
        return columns["next_observations"][:, 0], columns["features"], columns["rewards"]


class SB3Run(PlainRun):
    """The same with a `DeferredReplayBuffer`."""

    def __init__(self, lengths, capacity, mode=None, **options):
        self.vec = VLMVecEnv(paid(lengths, autoreset_mode="SameStep", **options))
        self.envs = self.vec.envs
        self.make = lambda: DeferredReplayBuffer(
            capacity, self.vec.observation_space, self.vec.action_space, "cpu", len(lengths)
        )
        self.buffer = self.make()
        self.observations = self.vec.reset()

    def step(self):
        actions = np.zeros(self.vec.num_envs, dtype=int)
        observations, rewards, dones, infos = self.vec.step(actions)
        ends = [info.get("terminal_observation", own) for info, own in zip(infos, observations, strict=True)]
        self.buffer.add(self.observations, np.array(ends), actions, rewards, dones, infos)
        self.observations = observations

    def flush(self):
        self.vec._add_rewards(self.envs.flush())

    def reset(self):
        self.observations = self.vec.reset()

    def save_and_load(self):
        """In turn as arrays, in small pieces, and as a pickle."""
        if self.buffer.size() % 2:
            self.buffer = pickle.loads(pickle.dumps(self.buffer))
            return
        file = io.BytesIO()
        np.savez(file, **self.buffer.state_dict())
        file.seek(0)
        self.buffer = self.make()
        with np.load(file, allow_pickle=False) as state:
            self.buffer.load_state_dict(state)

    def stored(self):
        size, columns = self.buffer.size(), self.buffer._late.columns
        return columns["next_observations"][:size, 0], columns["features"][:size], columns["rewards"][:size]
