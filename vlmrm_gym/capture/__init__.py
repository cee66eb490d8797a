"""Environments to states: which renderer draws an environment, and what it needs from each state.

Knows nothing of rewards.
"""

from vlmrm_gym.capture.state_view import StateView, choose_cameras, is_drawn_from_states, make_renderer
from vlmrm_gym.capture.vector import VectorCapture
from vlmrm_gym.capture.wrapper import CaptureState

__all__ = ["CaptureState", "StateView", "VectorCapture", "choose_cameras", "is_drawn_from_states", "make_renderer"]
