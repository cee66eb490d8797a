"""Which of two segments is closer to the goal: pairs, what answers them, and the file of answers. Imports no torch."""

from vlmrm_gym.preferences.agreement import Agreement, compare_labelers
from vlmrm_gym.preferences.answers import ask
from vlmrm_gym.preferences.answers_file import AnswersFile, Record
from vlmrm_gym.preferences.clip import CLIPLabeler
from vlmrm_gym.preferences.endpoint import EndpointLabeler
from vlmrm_gym.preferences.ground_truth import GroundTruthLabeler
from vlmrm_gym.preferences.human import HumanLabeler
from vlmrm_gym.preferences.labelers import CallableLabeler, Labeler, from_mapping, resolve_labeler, to_mapping
from vlmrm_gym.preferences.pairs import Answer, Pair, Side

__all__ = [
    "Agreement",
    "Answer",
    "AnswersFile",
    "CLIPLabeler",
    "CallableLabeler",
    "EndpointLabeler",
    "GroundTruthLabeler",
    "HumanLabeler",
    "Labeler",
    "Pair",
    "Record",
    "Side",
    "ask",
    "compare_labelers",
    "from_mapping",
    "resolve_labeler",
    "to_mapping",
]
