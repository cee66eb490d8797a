"""Turns a sentence into a reward for Gymnasium environments.

>>> import gymnasium as gym, vlmrm_gym
>>> env = gym.make("VLMRM/CartPole-v1", prompt="pole vertically upright on top of the cart")

Importing this package registers the IDs and nothing more: torch and the models are imported when they are used.
"""

from typing import TYPE_CHECKING, Any

import gymnasium as gym

from vlmrm_gym.tasks import TASKS

if TYPE_CHECKING:
    from vlmrm_gym.rewards import CLIPReward as CLIPReward
    from vlmrm_gym.vector import VLMRewardVectorEnv as VLMRewardVectorEnv
    from vlmrm_gym.wrappers import VLMReward as VLMReward

__version__ = "0.1.0"
__all__ = ["CLIPReward", "VLMReward", "VLMRewardVectorEnv", "__version__"]

for _task in TASKS:
    gym.register(
        id=_task.id,
        entry_point="vlmrm_gym.wrappers:make_task",
        vector_entry_point="vlmrm_gym.vector:make_vector_task",
        kwargs={
            "world": _task.world,
            "prompt": _task.prompt,
            "baseline": _task.baseline,
            "episode_length": _task.episode_length,
            **_task.options,
        },
    )

_HOMES = {
    "CLIPReward": "vlmrm_gym.rewards",
    "VLMReward": "vlmrm_gym.wrappers",
    "VLMRewardVectorEnv": "vlmrm_gym.vector",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
