"""A sentence as the reward of a Gymnasium environment.

>>> import gymnasium as gym, vlmrm_gym
>>> env = gym.make("VLMRM/CartPole-v1", prompt="pole vertically upright on top of the cart")

Importing this package only registers the IDs. torch and the models are imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

from vlmrm_gym.tasks import TASKS, register, register_hints

if TYPE_CHECKING:
    from vlmrm_gym.late import Late as Late
    from vlmrm_gym.late import read_late as read_late
    from vlmrm_gym.replay import ReplayBuffer as ReplayBuffer
    from vlmrm_gym.rewards import CLIP as CLIP
    from vlmrm_gym.rewards import CLIPReward as CLIPReward
    from vlmrm_gym.rewards import Endpoint as Endpoint
    from vlmrm_gym.rewards import Preference as Preference
    from vlmrm_gym.rewards import Program as Program
    from vlmrm_gym.states import CaptureState as CaptureState
    from vlmrm_gym.vector import VLMRewardVectorEnv as VLMRewardVectorEnv
    from vlmrm_gym.wrappers import VLMReward as VLMReward

__version__ = "0.2.0"
__all__ = [
    "CLIP",
    "CLIPReward",
    "CaptureState",
    "Endpoint",
    "Late",
    "Preference",
    "Program",
    "ReplayBuffer",
    "VLMReward",
    "VLMRewardVectorEnv",
    "__version__",
    "read_late",
]

for _task in TASKS:
    register(_task)
register_hints()

_LAZY = {
    "CLIP": "vlmrm_gym.rewards",
    "CLIPReward": "vlmrm_gym.rewards",
    "CaptureState": "vlmrm_gym.states",
    "Endpoint": "vlmrm_gym.rewards",
    "Late": "vlmrm_gym.late",
    "Preference": "vlmrm_gym.rewards",
    "Program": "vlmrm_gym.rewards",
    "ReplayBuffer": "vlmrm_gym.replay",
    "VLMReward": "vlmrm_gym.wrappers",
    "VLMRewardVectorEnv": "vlmrm_gym.vector",
    "read_late": "vlmrm_gym.late",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
