"""TorchRL (needs the extra "torchrl"): scored environments, and a replay buffer whose rewards arrive late.

>>> from vlmrm_gym.torchrl import LateReplayBuffer, make_env
>>> env = make_env("VLMRM/CartPole-v1", num_envs=2, seed=0, episode_length=10)
>>> buffer = LateReplayBuffer(env, 1_000, batch_size=16)
>>> for _ in range(2):
...     index = buffer.extend(env.rollout(10, auto_reset=True, break_when_any_done=False))
>>> buffer.sample()["next", "reward"].isfinite().all().item()
True
>>> env.close()
"""

from vlmrm_gym.torchrl.buffer import LateReplayBuffer
from vlmrm_gym.torchrl.env import VLMRewardEnv, make_env

__all__ = ["LateReplayBuffer", "VLMRewardEnv", "make_env"]
