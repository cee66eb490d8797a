"""Frames to rewards. Independent of environments; importing this package imports no torch."""

import importlib
from typing import TYPE_CHECKING, Any

from vlmrm_gym.rewards.clip import CLIP
from vlmrm_gym.rewards.combination import Sum, TaskReward
from vlmrm_gym.rewards.endpoint.reward import Endpoint
from vlmrm_gym.rewards.heads import SequenceHead
from vlmrm_gym.rewards.learned import Demonstrations, Preference
from vlmrm_gym.rewards.lerobot import LeRobot
from vlmrm_gym.rewards.model import RenderSize, RewardModel
from vlmrm_gym.rewards.over_time import Progress, Success
from vlmrm_gym.rewards.own import ImportedReward
from vlmrm_gym.rewards.program.spec import Program
from vlmrm_gym.rewards.robometer import Robometer
from vlmrm_gym.rewards.spec import RewardSpec
from vlmrm_gym.rewards.specification import from_mapping, load_reward, to_mapping

if TYPE_CHECKING:
    from vlmrm_gym.rewards.clip_model import CLIPReward
    from vlmrm_gym.rewards.preference_model import PreferenceHead

__all__ = [
    "CLIP",
    "CLIPReward",
    "Demonstrations",
    "Endpoint",
    "ImportedReward",
    "LeRobot",
    "Preference",
    "PreferenceHead",
    "Program",
    "Progress",
    "RenderSize",
    "RewardModel",
    "RewardSpec",
    "Robometer",
    "SequenceHead",
    "Success",
    "Sum",
    "TaskReward",
    "from_mapping",
    "load_reward",
    "to_mapping",
]

_LAZY = {"CLIPReward": "vlmrm_gym.rewards.clip_model", "PreferenceHead": "vlmrm_gym.rewards.preference_model"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
