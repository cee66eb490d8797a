"""One environment seen through its states: captures them, and draws them for a model or a viewer."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from vlmrm_gym.capture.capture import Capture, DrawingCapture
from vlmrm_gym.capture.factory import make_capture, make_renderer, make_trial, pin_camera
from vlmrm_gym.rendering.scene_changes import SceneChange
from vlmrm_gym.rendering.states import EnvRenderer, Quality, StateRenderer, States, side_by_side
from vlmrm_gym.rendering.stored import FrameStore
from vlmrm_gym.validation import short_repr


class StateView:
    """Captures an environment's states and draws them.

    Args:
        env: An environment made with `render_mode="rgb_array"`.
        camera: See `make_renderer`.
        quality: See `make_renderer`.
        pin: Whether to pin the environment's camera at once. False leaves the environment unchanged until
            `pin_camera` is called.

    Raises:
        ValueError: The environment does not render arrays, or `make_renderer` rejects a parameter.
    """

    def __init__(
        self, env: gym.Env[Any, Any], camera: Any = None, quality: Quality = "fast", *, pin: bool = True
    ) -> None:
        check_renders(env)
        self._env, self._own_camera = env, camera is None
        self._trial = make_trial(env)
        self._renderer = make_renderer(env, camera=camera, quality=quality)
        """Draws at the environment's own size."""
        self._view_capture = self._capture = self._make_capture(self._renderer)
        if pin:
            self.pin_camera()

    @property
    def num_views(self) -> int:
        """Number of cameras that draw a state."""
        return getattr(self._renderer, "num_views", 1)

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of the environment's own frames, in pixels; None if frames are stored."""
        own = self._renderer
        return (own.height, own.width) if isinstance(own, StateRenderer) else None

    def pin_camera(self) -> None:
        """If the view uses the environment's own camera, make the environment render with the same one."""
        if self._own_camera:
            pin_camera(self._env)

    def reset(self) -> None:
        """Call this after every reset of the environment."""
        if self._trial is not None:
            self._trial.reset()
        self._view_capture.reset()
        self._capture.reset()

    def capture(self) -> tuple[NDArray[Any], SceneChange | None]:
        """The current state, a copy, and how the scene differs from that of the newest renderer."""
        return self._capture()

    def make_renderer(self, render_size: Callable[[int, int], tuple[int, int]]) -> EnvRenderer:
        """Make a renderer of another size, for this process or another one. States are captured for it from now on."""
        renderer = self._renderer.at_size(render_size)
        self._capture = self._make_capture(renderer)
        return renderer

    def _make_capture(self, renderer: EnvRenderer, view: EnvRenderer | None = None) -> Capture:
        return make_capture(self._env, renderer, view, own_camera=self._own_camera, trial=self._trial)

    def use_renderer(self, renderer: EnvRenderer) -> None:
        """Capture states from now on for a renderer that another environment's view has made.

        Raises:
            ValueError: One of the two environments is drawn from its states, and the frames of the other are stored.
        """
        if isinstance(self._renderer, FrameStore) or not isinstance(renderer, StateRenderer):
            if self._renderer.is_equivalent(renderer):
                return
            raise ValueError(
                "`env` must have environments that are all drawn from their states, or none. Received some whose "
                "frames are stored. Wrap all in the same wrappers."
            )
        own = self._renderer.at_size(lambda *_: (renderer.height, renderer.width))
        if own.is_equivalent(renderer):
            self._capture = self._make_capture(renderer, own)
        else:
            self._capture = DrawingCapture(self._make_capture(own), own, renderer.state_size)

    def render(self) -> Any:
        """The current frame, drawn as the model sees it but at the environment's own size: uint8 (H, W, 3).

        Several views are side by side: (H, V * W, 3).
        """
        if isinstance(self._renderer, FrameStore):
            return self._env.render()
        state, change = self._view_capture()
        return side_by_side(States(state[None], [change]).draw(self._renderer))[0]

    def draw(self, states: NDArray[Any], changes: Sequence[SceneChange | None] | None = None) -> NDArray[np.uint8]:
        """Draw states (B, ...) at the environment's own size, views side by side: uint8 (B, H, V * W, 3)."""
        return side_by_side(self._renderer.render(states, changes))

    def close(self) -> None:
        """Free the graphics resources. The environment stays open."""
        self._view_capture.close()
        self._capture.close()
        self._renderer.close()


def check_renders(env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> None:
    """Raise a ValueError unless environments render arrays."""
    if env.render_mode != "rgb_array":
        raise ValueError(
            '`env` must be made with render_mode="rgb_array", so that its frames can be scored. '
            f'Received render_mode={short_repr(env.render_mode)}. Write gym.make(..., render_mode="rgb_array").'
        )
