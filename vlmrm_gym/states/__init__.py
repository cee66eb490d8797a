"""Environments to states, and states to frames: which renderer draws an environment, and what it needs of each state.

MuJoCo scenes and classic control are drawn from their states, the frames of everything else are stored. Independent of
rewards.
"""

from vlmrm_gym.states.scene_changes import SceneChange
from vlmrm_gym.states.states import EnvRenderer, Quality, Renderer, StateList, States
from vlmrm_gym.states.vector import VectorCapture
from vlmrm_gym.states.view import StateView, choose_cameras, is_drawn_from_states, make_renderer
from vlmrm_gym.states.wrapper import CaptureState

__all__ = [
    "CaptureState",
    "EnvRenderer",
    "Quality",
    "Renderer",
    "SceneChange",
    "StateList",
    "StateView",
    "States",
    "VectorCapture",
    "choose_cameras",
    "is_drawn_from_states",
    "make_renderer",
]
