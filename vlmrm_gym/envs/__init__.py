"""Environments that pay rewards: one, vectors of them, and those of any registered ID."""

from vlmrm_gym.envs.make import find_task, make_env, make_vector_env
from vlmrm_gym.envs.vector import VLMRewardVectorEnv
from vlmrm_gym.envs.wrapper import VLMReward

__all__ = ["VLMReward", "VLMRewardVectorEnv", "find_task", "make_env", "make_vector_env"]
