"""One environment as it is seen: by a model, or by a viewer."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from vlmrm_gym.rendering.choice import is_drawn_from_states, make_renderer
from vlmrm_gym.rendering.renderer import Quality, Renderer


class Scene:
    """Reads an environment's states and draws them.

    Args:
        env: An environment made with `render_mode="rgb_array"`.
        camera: See `make_renderer`.
        quality: See `make_renderer`.

    Raises:
        ValueError: The environment does not render arrays; and all that `make_renderer` raises.
    """

    def __init__(self, env: gym.Env[Any, Any], camera: Any = None, quality: Quality = "fast") -> None:
        check_renders(env)
        self._env, self._camera = env, camera
        self._quality: Quality = quality
        self._view = make_renderer(env, camera=camera, quality=quality)

    def capture(self) -> NDArray[Any]:
        """What determines the frame that the environment shows now; a copy."""
        return self._view.capture(self._env)

    def make_renderer(self, size_to_draw: Callable[[int, int], tuple[int, int]]) -> Renderer:
        """What draws the states that were captured, here or in another process, at another size."""
        return make_renderer(self._env, size_to_draw, camera=self._camera, quality=self._quality)

    def render(self) -> Any:
        """The frame as a model sees it, at the environment's own size: uint8 (H, W, 3)."""
        if not is_drawn_from_states(self._env):
            return self._env.render()
        return self.draw(self.capture()[None])[0]

    def draw(self, states: NDArray[Any]) -> NDArray[np.uint8]:
        """States (B, ...) at the environment's own size: uint8 (B, H, W, 3)."""
        return self._view.render(states)

    def close(self) -> None:
        """Let go of what draws; the environment stays open."""
        self._view.close()


def check_renders(env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> None:
    """Raise a ValueError unless environments render arrays."""
    if env.render_mode != "rgb_array":
        raise ValueError(
            '`env` must be made with render_mode="rgb_array", so that its frames can be scored. '
            f'Received render_mode={env.render_mode!r}. Write gym.make(..., render_mode="rgb_array").'
        )


STATE_KEY = "vlm_state"
"""Where a step's info has the state that the action led to."""


class CaptureState(gym.Wrapper[Any, Any, Any, Any]):
    """Puts the state that each step led to into its info: `info["vlm_state"]`, to be scored later, somewhere else.

    Vector environments reset a sub-environment that has ended, some of them in the same step: this reads the state
    before. `VLMRewardVectorEnv` wraps the environments that it makes. Around the sub-environments of a vector
    environment with processes of its own put this yourself, so that states, not frames, come out of them:

    >>> import gymnasium as gym
    >>> from vlmrm_gym.rendering import CaptureState
    >>> env = CaptureState(gym.make("CartPole-v1", render_mode="rgb_array"))
    >>> observation, info = env.reset(seed=0)
    >>> env.step(1)[4]["vlm_state"].shape
    (2,)

    Args:
        env: An environment made with `render_mode="rgb_array"`.
        camera: See `vlmrm_gym.VLMReward`.
        quality: See `vlmrm_gym.VLMReward`.

    Raises:
        ValueError: The environment does not render arrays; and all that `make_renderer` raises.
    """

    def __init__(self, env: gym.Env[Any, Any], *, camera: Any = None, quality: Quality = "fast") -> None:
        super().__init__(env)
        self.metadata = {**env.metadata, STATE_KEY: True}
        self._scene = Scene(env, camera, quality)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, then read its state."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, STATE_KEY: self._scene.capture()}

    @property
    def stores_frames(self) -> bool:
        """Whether the states are the rendered frames."""
        return not is_drawn_from_states(self.env)

    def make_renderer(self, size_to_draw: Callable[[int, int], tuple[int, int]]) -> Renderer:
        """What draws the states."""
        return self._scene.make_renderer(size_to_draw)

    def render(self) -> Any:
        """The frame as a model sees it, at the environment's own size: uint8 (H, W, 3)."""
        return self._scene.render()

    def close(self) -> None:
        """Let go of the environment and of what draws it."""
        self._scene.close()
        super().close()
