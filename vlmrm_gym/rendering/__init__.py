"""States to frames: MuJoCo scenes, classic control, and stored frames for all else. Knows nothing of rewards."""

from vlmrm_gym.rendering.choice import is_drawn_from_states as is_drawn_from_states
from vlmrm_gym.rendering.choice import make_renderer as make_renderer
from vlmrm_gym.rendering.renderer import Quality as Quality
from vlmrm_gym.rendering.renderer import Renderer as Renderer
from vlmrm_gym.rendering.scene import CaptureState as CaptureState
from vlmrm_gym.rendering.scene import Scene as Scene
from vlmrm_gym.rendering.vector import VectorScene as VectorScene
