"""Preferences between two segments: pairs, labelers that answer them, and a learner.

Imports no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from vlmrm_gym.learning.answers import AnswersFile, Record, ask
from vlmrm_gym.learning.endpoint import EndpointLabeler
from vlmrm_gym.learning.labelers import CallableLabeler, GroundTruthLabeler, HumanLabeler, Labeler, resolve_labeler
from vlmrm_gym.learning.pairs import Answer, Pair

if TYPE_CHECKING:
    from vlmrm_gym.learning.demonstrations import VideoFitOptions
    from vlmrm_gym.learning.fitting import FitOptions
    from vlmrm_gym.learning.learner import PreferenceLearner, Round
    from vlmrm_gym.learning.refining import RefinedPlaceHead

__all__ = [
    "Answer",
    "AnswersFile",
    "CallableLabeler",
    "EndpointLabeler",
    "FitOptions",
    "GroundTruthLabeler",
    "HumanLabeler",
    "Labeler",
    "Pair",
    "PreferenceLearner",
    "Record",
    "RefinedPlaceHead",
    "Round",
    "VideoFitOptions",
    "ask",
    "resolve_labeler",
]

_LAZY = {
    "FitOptions": "vlmrm_gym.learning.fitting",
    "PreferenceLearner": "vlmrm_gym.learning.learner",
    "RefinedPlaceHead": "vlmrm_gym.learning.refining",
    "Round": "vlmrm_gym.learning.learner",
    "VideoFitOptions": "vlmrm_gym.learning.demonstrations",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
