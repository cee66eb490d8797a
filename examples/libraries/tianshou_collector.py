"""Tianshou's collector plays SAC on mountain car, whose rewards are there at once.

python -m pip install "tianshou"
python examples/libraries/tianshou_collector.py
"""
# pyright: reportMissingImports=false

import gymnasium as gym
from tianshou.algorithm.modelfree.sac import SACPolicy
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic

makers = [lambda: gym.make("VLMRM/MountainCarContinuous-v0", episode_length=20)] * 2
env = gym.make("VLMRM/MountainCarContinuous-v0")
net = Net(state_shape=env.observation_space.shape, hidden_sizes=[64])
actor = ContinuousActorProbabilistic(preprocess_net=net, action_shape=env.action_space.shape, unbounded=True)
policy = SACPolicy(actor=actor, action_space=env.action_space)
collector = Collector(policy, DummyVectorEnv(makers), VectorReplayBuffer(100, 2))
collector.reset()
print(collector.collect(n_step=40).returns)
