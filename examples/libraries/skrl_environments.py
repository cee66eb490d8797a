"""skrl's environments, which its agents and trainers take, with rewards at once.

python -m pip install "skrl"
python examples/libraries/skrl_environments.py
"""
# pyright: reportMissingImports=false

import gymnasium as gym
import torch
from skrl.envs.wrappers.torch import wrap_env

envs = gym.make_vec("VLMRM/MountainCarContinuous-v0", num_envs=2, scoring="step", episode_length=20)
env = wrap_env(envs)  # what skrl's agents and trainers take
observations, infos = env.reset()
observations, rewards, terminated, truncated, infos = env.step(torch.zeros(2, 1))
print(rewards)
env.close()
