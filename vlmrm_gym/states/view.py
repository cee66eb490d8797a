"""StateView sees one environment through its states: it chooses the renderer, captures states, and draws them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv
from gymnasium.error import ResetNeeded
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from vlmrm_gym._util.validation import check_choice, layers, short_repr
from vlmrm_gym.states.drawing import FrameStore, check_frame, resize
from vlmrm_gym.states.scene_changes import SceneChange
from vlmrm_gym.states.states import QUALITIES, EnvRenderer, Quality, States, side_by_side

# MuJoCo and pygame are imported only where they are needed.

_SCREEN = {"screen_width": 600, "screen_height": 400}
_APPEARANCES: Mapping[type, Mapping[str, float]] = {
    CartPoleEnv: {"length": 0.5, "x_threshold": 2.4, **_SCREEN},
    Continuous_MountainCarEnv: {"min_position": -1.2, "max_position": 0.6, "goal_position": 0.45, **_SCREEN},
}
"""Attributes that frames of a class depend on besides the state, with the only values that we can draw.

A class of another module is drawn in the same way if it says so itself: `DRAWN_AS` is the class here."""

_PASSTHROUGH = (gym.wrappers.PassiveEnvChecker, gym.wrappers.OrderEnforcing, gym.wrappers.RecordVideo)
"""Wrappers that override `render` without changing the frame."""


class DirectCapture:
    """Reads the states that a renderer captures. Once the appearance has changed, the environment's own frames."""

    def __init__(self, env: gym.Env[Any, Any], renderer: Any, appearance: Mapping[str, float]) -> None:
        self._env: Any = env
        self._renderer, self._appearance = renderer, appearance

    def reset(self) -> None:
        """Do nothing: all that may change is looked at in every state."""

    def __call__(self) -> tuple[NDArray[Any], SceneChange | None]:
        """The state, float64 (state_size,), with the frame if the renderer would draw another; or a stored frame."""
        if self._appearance and getattr(self._env, "state", None) is None:
            raise ResetNeeded(f"{self._env} has no state to draw yet. Call `reset` first.")
        state = self._renderer.capture(self._env)
        if all(getattr(self._env, name) == value for name, value in self._appearance.items()):
            return state, None
        frame = check_frame(self._env.render())
        return state, SceneChange(frame=resize(frame, (self._renderer.height, self._renderer.width)))


class StateView:
    """Captures the states of an environment made with `render_mode="rgb_array"`, and draws them; see `make_renderer`.

    An environment that is seen by its own camera renders with the same one from now on.
    """

    def __init__(self, env: gym.Env[Any, Any], camera: Any = None, quality: Quality = "fast") -> None:
        check_renders(env)
        self._env, self._own_camera = env, camera is None
        self._trial = _make_trial(env)
        self._renderer = make_renderer(env, camera=camera, quality=quality)
        """Draws at the environment's own size."""
        self.num_views: int = getattr(self._renderer, "num_views", 1)
        """Number of cameras that draw a state."""
        self.size = None if isinstance(self._renderer, FrameStore) else (self._renderer.height, self._renderer.width)
        """(height, width) of the environment's own frames, in pixels; None if frames are stored."""
        self.stores_frames = self.size is None
        """Whether the states are rendered frames."""
        self._drawer: Any = None
        """Draws every state at once, for a renderer of another environment that cannot draw this one."""
        self._view_capture = self._capture = self._make_capture(self._renderer)
        if self._own_camera and (scene := _find_scene(env)) is not None:
            from vlmrm_gym.states.env_viewers import pin_camera

            pin_camera(scene)

    def reset(self) -> None:
        """Call this after every reset of the environment."""
        if self._trial is not None:
            self._trial.reset()
        self._view_capture.reset()
        self._capture.reset()

    def capture(self) -> tuple[NDArray[Any], SceneChange | None]:
        """The current state, a copy, and how the scene differs from that of the newest renderer."""
        state, change = self._capture()
        if self._drawer is None:
            return state, change
        frame = States(state[None], [change]).draw(self._drawer)[0]
        return np.zeros(self._state_size), SceneChange(frame=frame)

    def make_renderer(self, render_size: Callable[[int, int], tuple[int, int]]) -> EnvRenderer:
        """Make a renderer of another size, for this process or another one. States are captured for it from now on."""
        renderer = self._renderer.at_size(render_size)
        self._capture, self._drawer = self._make_capture(renderer), None
        return renderer

    def _make_capture(self, renderer: Any) -> Any:
        """Reads states for a renderer, which may be another environment's."""
        if isinstance(renderer, FrameStore):
            return DirectCapture(self._env, renderer, {})
        base: Any = self._env.unwrapped
        if (appearance := _find_appearance(base)) is not None:
            return DirectCapture(base, renderer, appearance)
        from vlmrm_gym.states.mujoco_capture import MuJoCoCapture

        cameras = None if self._own_camera else self._renderer.cameras
        return MuJoCoCapture(self._env, renderer, cameras, self._trial)

    def use_renderer(self, renderer: Any) -> None:
        """Capture states from now on for a renderer that another environment's view has made."""
        if isinstance(self._renderer, FrameStore) != isinstance(renderer, FrameStore):
            raise ValueError(
                "`env` must have environments that are all drawn from their states, or none. Received some whose "
                "frames are stored. Wrap all in the same wrappers."
            )
        if isinstance(renderer, FrameStore):
            return
        same_size = self._renderer.at_size(lambda *_: (renderer.height, renderer.width))
        if same_size.is_equivalent(renderer):
            self._capture = self._make_capture(renderer)
        else:
            self._capture, self._drawer = self._make_capture(same_size), same_size
            self._state_size = renderer.state_size

    def render(self) -> Any:
        """The frame as the model sees it, but at the environment's own size: uint8 (H, W, 3), views side by side."""
        if isinstance(self._renderer, FrameStore):
            return self._env.render()
        state, change = self._view_capture()
        return side_by_side(States(state[None], [change]).draw(self._renderer))[0]

    def draw(self, states: NDArray[Any], changes: Sequence[SceneChange | None] | None = None) -> NDArray[np.uint8]:
        """Draw states (B, ...) at the environment's own size, views side by side: uint8 (B, H, V * W, 3)."""
        return side_by_side(self._renderer.render(states, changes))

    def draw_views(self, states: NDArray[Any]) -> NDArray[np.uint8]:
        """Draw states (B, ...) from each of V cameras, one after the other: uint8 (B * V, H, W, 3)."""
        frames = self._renderer.render(states)
        return frames.reshape(-1, *frames.shape[-3:])

    def close(self) -> None:
        """Free the graphics resources. The environment stays open."""
        self._renderer.close()
        if self._drawer is not None:
            self._drawer.close()


def check_renders(env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> None:
    """Raise a ValueError unless environments render arrays."""
    if env.render_mode != "rgb_array":
        raise ValueError(
            '`env` must be made with render_mode="rgb_array", so that its frames can be scored. '
            f'Received render_mode={short_repr(env.render_mode)}. Write gym.make(..., render_mode="rgb_array").'
        )


def make_renderer(env: gym.Env[Any, Any], *, camera: Any = None, quality: Quality = "fast") -> Any:
    """Make the `EnvRenderer` of an environment that renders arrays, at its own size. The environment stays unchanged.

    Environments with a MuJoCo scene (see `find_scene`), cart-pole and continuous mountain car are drawn from their
    states, at any size. The frames of any other environment are stored as they are. `camera` (see
    `cameras.make_cameras`; None: the environment's own) and `quality` (see `MuJoCoRenderer`) are for MuJoCo only.
    """
    check_choice("quality", quality, QUALITIES)
    base: Any = env.unwrapped
    scene, cameras = _find_scene(env), None if camera is None else choose_cameras(env, camera)
    if camera is not None and cameras is None:
        received = f"Received {short_repr(camera)} for {base}, which has one view. Leave it out."
        raise ValueError(f"`camera` is for MuJoCo environments. {received}")
    if scene is not None:
        from vlmrm_gym.states.env_viewers import find_camera, find_look, own_size
        from vlmrm_gym.states.mujoco import MuJoCoRenderer

        look = {"camera": cameras or find_camera(scene), "quality": quality, **find_look(scene)}
        return MuJoCoRenderer(scene.model, *own_size(scene), **look)
    if not is_drawn_from_states(env):
        return FrameStore()
    from vlmrm_gym.states.classic_control import CartPoleRenderer, MountainCarRenderer

    if isinstance(base, CartPoleEnv):
        return CartPoleRenderer(base.screen_height, base.screen_width)
    return MountainCarRenderer(base.screen_height, base.screen_width, textured=getattr(base, "textured", False))


def choose_cameras(env: gym.Env[Any, Any], camera: Any) -> Sequence[Any] | None:
    """The cameras that a user describes, see `cameras.make_cameras`; None if the environment renders from none."""
    scene = _find_scene(env)
    if scene is None:
        return None
    from vlmrm_gym.states.cameras import make_cameras
    from vlmrm_gym.states.env_viewers import find_camera

    return make_cameras(scene.model, camera, getattr(scene, "reference_camera", None) or find_camera(scene))


def is_drawn_from_states(env: gym.Env[Any, Any]) -> bool:
    """Tell whether an environment is drawn from its states, as long as these determine what it shows."""
    base, appearance = env.unwrapped, _find_appearance(env.unwrapped)
    if appearance is not None:
        return not _is_redrawn(env) and all(getattr(base, name) == value for name, value in appearance.items())
    return _find_scene(env) is not None and not _is_redrawn(env)


def _find_appearance(base: Any) -> Mapping[str, Any] | None:
    """Attributes that frames depend on besides the state, with their values; None for classes not in `_APPEARANCES`."""
    appearance = _APPEARANCES.get(vars(type(base)).get("DRAWN_AS", type(base)))  # not of a base class: it may draw more
    textured = {"textured": base.textured} if hasattr(base, "textured") else {}
    return None if appearance is None else {**appearance, **textured}


def _is_redrawn(env: gym.Env[Any, Any]) -> bool:
    wrappers = (one for one in layers(env) if isinstance(one, gym.Wrapper) and not isinstance(one, _PASSTHROUGH))
    return any(type(one).render is not gym.Wrapper.render for one in wrappers)


def _find_scene(env: gym.Env[Any, Any]) -> Any:
    """See `find_scene`; None without MuJoCo."""
    if "mujoco" not in sys.modules:
        return None  # nothing has made a model
    from vlmrm_gym.states.env_viewers import find_scene

    return find_scene(env)


def _make_trial(env: gym.Env[Any, Any]) -> Any:
    """The `Trial` of an environment with a MuJoCo scene that is drawn by code other than Gymnasium's; else None."""
    if _find_scene(env) is None:
        return None
    from vlmrm_gym.states.mujoco_capture import Trial
    from vlmrm_gym.states.watch import renders_as_gymnasium

    is_redrawn = _is_redrawn(env)
    return None if renders_as_gymnasium(env.unwrapped) and not is_redrawn else Trial(env, failed=is_redrawn)
