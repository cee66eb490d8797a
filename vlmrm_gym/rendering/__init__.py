"""States to frames: MuJoCo scenes, classic control, and stored frames for everything else. Independent of rewards."""

from vlmrm_gym.rendering.renderer import EnvRenderer, Quality, Renderer
from vlmrm_gym.rendering.scene_changes import SceneChange
from vlmrm_gym.rendering.states import StateList, States

__all__ = ["EnvRenderer", "Quality", "Renderer", "SceneChange", "StateList", "States"]
