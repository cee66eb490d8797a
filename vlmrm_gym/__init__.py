"""A sentence as the reward of a Gymnasium environment.

>>> import gymnasium as gym, vlmrm_gym
>>> env = gym.make("VLMRM/CartPole-v1", prompt="pole vertically upright on top of the cart")

Importing this package only registers the IDs. torch and the models are imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

from vlmrm_gym._util import __version__
from vlmrm_gym.tasks import TASKS, register, register_hints

if TYPE_CHECKING:
    from vlmrm_gym._util.errors import InputError
    from vlmrm_gym.data.episode_log import EpisodeLog
    from vlmrm_gym.data.late import Late, read_late
    from vlmrm_gym.data.replay import ReplayBuffer
    from vlmrm_gym.data.trajectory import Trajectory
    from vlmrm_gym.envs.vector import VLMRewardVectorEnv
    from vlmrm_gym.envs.wrapper import VLMReward
    from vlmrm_gym.learning import EndpointLabeler, GroundTruthLabeler, HumanLabeler, PreferenceLearner
    from vlmrm_gym.rewards import (
        CLIP,
        CLIPReward,
        Demonstrations,
        Endpoint,
        LeRobot,
        Preference,
        Program,
        Progress,
        RewardModel,
        RewardSpec,
        Robometer,
        SequenceHead,
        Success,
        Sum,
        TaskReward,
        load_reward,
    )
    from vlmrm_gym.states import CaptureState
    from vlmrm_gym.tools.cli.check import check
    from vlmrm_gym.tools.cli.fit import fit_preferences
    from vlmrm_gym.tools.fit_videos import fit_demonstrations
    from vlmrm_gym.tools.score_frames import score

__all__ = [
    "CLIP",
    "CLIPReward",
    "CaptureState",
    "Demonstrations",
    "Endpoint",
    "EndpointLabeler",
    "EpisodeLog",
    "GroundTruthLabeler",
    "HumanLabeler",
    "InputError",
    "Late",
    "LeRobot",
    "Preference",
    "PreferenceLearner",
    "Program",
    "Progress",
    "ReplayBuffer",
    "RewardModel",
    "RewardSpec",
    "Robometer",
    "SequenceHead",
    "Success",
    "Sum",
    "TaskReward",
    "Trajectory",
    "VLMReward",
    "VLMRewardVectorEnv",
    "__version__",
    "check",
    "fit_demonstrations",
    "fit_preferences",
    "load_reward",
    "read_late",
    "score",
]

for _task in TASKS:
    register(_task)
register_hints()

_LAZY = {
    "_util.errors": "InputError",
    "data.episode_log": "EpisodeLog",
    "data.late": "Late read_late",
    "data.replay": "ReplayBuffer",
    "data.trajectory": "Trajectory",
    "envs.vector": "VLMRewardVectorEnv",
    "envs.wrapper": "VLMReward",
    "learning": "EndpointLabeler GroundTruthLabeler HumanLabeler PreferenceLearner",
    "rewards": "CLIP CLIPReward Demonstrations Endpoint LeRobot Preference Program Progress RewardModel "
    "RewardSpec Robometer SequenceHead Success Sum TaskReward load_reward",
    "states": "CaptureState",
    "tools.cli.check": "check",
    "tools.cli.fit": "fit_preferences",
    "tools.fit_videos": "fit_demonstrations",
    "tools.score_frames": "score",
}
"""Public names by the module that has them."""


_ROOMS = ("learning", "rewards", "sb3", "states", "tasks", "torchrl")
"""Public modules, which need no import of their own."""


def __getattr__(name: str) -> Any:
    import importlib

    if name in _ROOMS:
        return importlib.import_module(f"vlmrm_gym.{name}")
    for module, names in _LAZY.items():
        if name in names.split():
            return getattr(importlib.import_module(f"vlmrm_gym.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})
