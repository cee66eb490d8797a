"""A sentence as the reward of a Gymnasium environment.

>>> import gymnasium as gym, vlmrm_gym
>>> env = gym.make("VLMRM/CartPole-v1", prompt="pole vertically upright on top of the cart")

Importing this package only registers the IDs. torch and the models are imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

from vlmrm_gym._util import __version__
from vlmrm_gym.tasks import TASKS, register, register_hints

if TYPE_CHECKING:
    from vlmrm_gym.rewards import CLIP as CLIP
    from vlmrm_gym.rewards import CLIPReward as CLIPReward
    from vlmrm_gym.rewards import Endpoint as Endpoint
    from vlmrm_gym.rewards import Preference as Preference
    from vlmrm_gym.rewards import Program as Program
    from vlmrm_gym.states import CaptureState as CaptureState
    from vlmrm_gym.vector import VLMRewardVectorEnv as VLMRewardVectorEnv
    from vlmrm_gym.wrappers import VLMReward as VLMReward

__all__ = [
    "CLIP",
    "CLIPReward",
    "CaptureState",
    "Endpoint",
    "Preference",
    "Program",
    "VLMReward",
    "VLMRewardVectorEnv",
    "__version__",
]

for _task in TASKS:
    register(_task)
register_hints()

_LAZY = {
    "CLIP": "vlmrm_gym.rewards",
    "CLIPReward": "vlmrm_gym.rewards",
    "CaptureState": "vlmrm_gym.states",
    "Endpoint": "vlmrm_gym.rewards",
    "Preference": "vlmrm_gym.rewards",
    "Program": "vlmrm_gym.rewards",
    "VLMReward": "vlmrm_gym.wrappers",
    "VLMRewardVectorEnv": "vlmrm_gym.vector",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
