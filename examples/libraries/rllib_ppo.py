"""RLlib's PPO on mountain car, whose rewards are there at once.

python -m pip install "ray[rllib]"
python examples/libraries/rllib_ppo.py
"""
# pyright: reportMissingImports=false

import gymnasium as gym
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune import register_env

register_env("car", lambda config: gym.make("VLMRM/MountainCarContinuous-v0", episode_length=20))
config = PPOConfig().environment("car").env_runners(num_env_runners=0, rollout_fragment_length=40)
algorithm = config.training(train_batch_size_per_learner=40, minibatch_size=20, num_epochs=1).build_algo()
print(algorithm.train()["env_runners"]["episode_return_mean"])
algorithm.stop()
