"""For unmodified Stable-Baselines3: a VecEnv, buffers that wait for rewards, and a logging callback (extra "sb3").

For example::

    from stable_baselines3 import SAC
    from vlmrm_gym.sb3 import DeferredReplayBuffer, make_vec_env

    envs = make_vec_env("VLMRM/Humanoid-stand-v0", n_envs=8, num_workers=2)
    SAC("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, learning_starts=800).learn(100_000)

Off-policy algorithms (SAC, TD3, DDPG, DQN; TQC, CrossQ and QR-DQN of sb3-contrib) take `DeferredReplayBuffer`, PPO and
A2C `DeferredRolloutBuffer`. Training with another buffer raises an error at the first step, since rewards are NaN until
an episode has been scored. ARS of sb3-contrib has no buffer: it learns from the returns of `evaluate_policy`.
"""

from vlmrm_gym.sb3.callbacks import PreferenceCallback, RefineCallback, ScoredReturnCallback
from vlmrm_gym.sb3.policy import ActionRepeatNoise, RunningNormExtractor
from vlmrm_gym.sb3.replay_buffer import DeferredReplayBuffer
from vlmrm_gym.sb3.rollout_buffer import DeferredRolloutBuffer, RewardHandle
from vlmrm_gym.sb3.vec_env import VLMVecEnv, make_vec_env

__all__ = [
    "ActionRepeatNoise",
    "DeferredReplayBuffer",
    "DeferredRolloutBuffer",
    "PreferenceCallback",
    "RefineCallback",
    "RewardHandle",
    "RunningNormExtractor",
    "ScoredReturnCallback",
    "VLMVecEnv",
    "make_vec_env",
]
