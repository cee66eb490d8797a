"""The environments: dynamics, appearance and success. Independent of reward models.

Mujoco is imported with the humanoid only.
"""

from typing import TYPE_CHECKING, Any

from vlmrm_gym.envs.cartpole import CartPole as CartPole
from vlmrm_gym.envs.mountain_car import MountainCar as MountainCar

if TYPE_CHECKING:
    from vlmrm_gym.envs.humanoid import Humanoid as Humanoid


def __getattr__(name: str) -> Any:
    if name == "Humanoid":
        from vlmrm_gym.envs.humanoid import Humanoid

        return Humanoid
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
