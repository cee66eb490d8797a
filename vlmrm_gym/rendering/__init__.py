"""States to frames: MuJoCo scenes, classic control, and stored frames for everything else. Independent of rewards."""

from vlmrm_gym.rendering.scene_changes import SceneChange
from vlmrm_gym.rendering.states import EnvRenderer, Quality, Renderer, StateList, States

__all__ = ["EnvRenderer", "Quality", "Renderer", "SceneChange", "StateList", "States"]
