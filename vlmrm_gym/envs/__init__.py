"""The environments: dynamics, appearance and success. Independent of reward models."""

from vlmrm_gym.envs.cartpole import CartPole as CartPole
from vlmrm_gym.envs.mountain_car import MountainCar as MountainCar
