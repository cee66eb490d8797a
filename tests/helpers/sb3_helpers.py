"""Stable-Baselines3 algorithms on environments whose rewards say which state they are of."""

import numpy as np
from counting_env import Counting
from stable_baselines3.common.callbacks import BaseCallback

import vlmrm_gym
from vlmrm_gym.sb3 import DeferredReplayBuffer, DeferredRolloutBuffer, RewardHandle, VLMVecEnv


def make_counting(lengths, make=Counting, **options):
    """Environments of episodes of these lengths, each with a range of counts of its own, and the bases."""
    bases = [make(own, first=1_000 * number) for number, own in enumerate(lengths)]
    options = {"reward": "reward_models:PixelReward", "autoreset_mode": "SameStep", **options}
    return VLMVecEnv(vlmrm_gym.VLMRewardVectorEnv([lambda b=b: b for b in bases], **options)), bases


def off_policy(algorithm, envs, policy="MlpPolicy", **options):
    """An algorithm with a buffer that waits; it learns from no step unless `learning_starts` says so."""
    defaults = {"replay_buffer_class": DeferredReplayBuffer, "buffer_size": 1_000, "learning_starts": 10_000}
    defaults |= {"batch_size": 16, "train_freq": 4, "policy_kwargs": {"net_arch": [16]}, "seed": 0, "device": "cpu"}
    return algorithm(policy, envs, **{**defaults, **options})


def on_policy(algorithm, envs, n_steps, policy="MlpPolicy", handle=None, **options):
    """An algorithm with a rollout buffer that waits."""
    defaults = {"rollout_buffer_class": DeferredRolloutBuffer, "policy_kwargs": {"net_arch": [16]}, "device": "cpu"}
    defaults["rollout_buffer_kwargs"] = {"rewards": handle or RewardHandle(envs)}
    if algorithm.__name__ == "PPO":
        defaults["batch_size"] = n_steps
    return algorithm(policy, envs, n_steps=n_steps, **{**defaults, **options})


def parameters(model):
    """A copy of a model's parameters, as one array."""
    return np.concatenate([value.numpy().ravel() for value in model.policy.state_dict().values()])


class Rollouts(BaseCallback):
    """Keeps of each rollout the rewards of all steps that another follows in its episode, and what they led to."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        buffer = self.model.rollout_buffer
        goes_on = buffer.episode_starts[1:] == 0  # rows after a reset do not say what the step before led to
        observations = buffer.observations
        if isinstance(observations, dict):
            led_to = {key: values[1:][goes_on] for key, values in observations.items()}
        else:
            led_to = observations[1:][goes_on]
        self.seen.append((buffer.rewards[:-1][goes_on], led_to))


class StopAfter(BaseCallback):
    """Ends `learn` after a number of its steps, before the last transition is stored."""

    def __init__(self, steps):
        super().__init__()
        self._steps = steps

    def _on_step(self):
        return self.n_calls < self._steps
