"""A sentence as the reward of a Gymnasium environment.

>>> import gymnasium as gym, vlmrm_gym
>>> env = gym.make("VLMRM/CartPole-v1", prompt="pole vertically upright on top of the cart")

Importing this package only registers the IDs. torch and the models are imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

from vlmrm_gym._util import __version__
from vlmrm_gym.tasks import TASKS, register, register_hints

if TYPE_CHECKING:
    from vlmrm_gym._util.errors import InputError as InputError
    from vlmrm_gym.data.episode_log import EpisodeLog as EpisodeLog
    from vlmrm_gym.data.late import Late as Late
    from vlmrm_gym.data.late import read_late as read_late
    from vlmrm_gym.data.replay import ReplayBuffer as ReplayBuffer
    from vlmrm_gym.data.trajectory import Trajectory as Trajectory
    from vlmrm_gym.envs.vector import VLMRewardVectorEnv as VLMRewardVectorEnv
    from vlmrm_gym.envs.wrapper import VLMReward as VLMReward
    from vlmrm_gym.learning import EndpointLabeler as EndpointLabeler
    from vlmrm_gym.learning import GroundTruthLabeler as GroundTruthLabeler
    from vlmrm_gym.learning import HumanLabeler as HumanLabeler
    from vlmrm_gym.learning import PreferenceLearner as PreferenceLearner
    from vlmrm_gym.rewards import CLIP as CLIP
    from vlmrm_gym.rewards import CLIPReward as CLIPReward
    from vlmrm_gym.rewards import Demonstrations as Demonstrations
    from vlmrm_gym.rewards import Endpoint as Endpoint
    from vlmrm_gym.rewards import LeRobot as LeRobot
    from vlmrm_gym.rewards import Preference as Preference
    from vlmrm_gym.rewards import Program as Program
    from vlmrm_gym.rewards import Progress as Progress
    from vlmrm_gym.rewards import RewardModel as RewardModel
    from vlmrm_gym.rewards import RewardSpec as RewardSpec
    from vlmrm_gym.rewards import Robometer as Robometer
    from vlmrm_gym.rewards import SequenceHead as SequenceHead
    from vlmrm_gym.rewards import Success as Success
    from vlmrm_gym.rewards import Sum as Sum
    from vlmrm_gym.rewards import TaskReward as TaskReward
    from vlmrm_gym.rewards import load_reward as load_reward
    from vlmrm_gym.states import CaptureState as CaptureState
    from vlmrm_gym.tools.cli.check import check as check
    from vlmrm_gym.tools.cli.fit import fit_preferences as fit_preferences
    from vlmrm_gym.tools.fit_videos import fit_demonstrations as fit_demonstrations
    from vlmrm_gym.tools.score_frames import score as score

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
_MODULES = {name: f"vlmrm_gym.{module}" for module, names in _LAZY.items() for name in names.split()}
__all__ = ["__version__", *sorted(_MODULES)]  # pyright: ignore[reportUnsupportedDunderAll]

_ROOMS = ("learning", "rewards", "sb3", "states", "tasks", "torchrl")
"""Public modules, which need no import of their own."""


def __getattr__(name: str) -> Any:
    import importlib

    if name in _ROOMS:
        return importlib.import_module(f"vlmrm_gym.{name}")
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})
