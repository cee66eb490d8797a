"""The worlds: dynamics, drawing and success. They know nothing of reward models."""

from vlmrm_gym.envs.cartpole import CartPole as CartPole
