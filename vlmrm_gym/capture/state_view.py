"""One environment seen through its states: chooses the renderer, captures states, and draws them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from vlmrm_gym import envs
from vlmrm_gym.capture.capture import Capture, ClassicControlCapture, DrawingCapture, FrameCapture
from vlmrm_gym.rendering.scene_changes import SceneChange
from vlmrm_gym.rendering.states import QUALITIES, EnvRenderer, Quality, StateRenderer, States, side_by_side
from vlmrm_gym.rendering.stored import FrameStore
from vlmrm_gym.validation import check_choice, short_repr

# MuJoCo and pygame are imported only where they are needed.

Kind = Literal["mujoco", "cart-pole", "mountain car"]
_CLASSIC_CONTROL: Mapping[Kind, tuple[tuple[type, ...], Mapping[str, float]]] = {
    "cart-pole": (
        (CartPoleEnv, envs.CartPole),
        {"length": 0.5, "x_threshold": 2.4, "screen_width": 600, "screen_height": 400},
    ),
    "mountain car": (
        (Continuous_MountainCarEnv, envs.MountainCar),
        {"min_position": -1.2, "max_position": 0.6, "goal_position": 0.45, "screen_width": 600, "screen_height": 400},
    ),
}
"""Classes, and attributes that their frames depend on besides the state, with the only values that we can draw."""

_PASSTHROUGH = (gym.wrappers.PassiveEnvChecker, gym.wrappers.OrderEnforcing, gym.wrappers.RecordVideo)
"""Wrappers that override `render` without changing the frame."""


class StateView:
    """Captures the states of an environment made with `render_mode="rgb_array"`, and draws them.

    For `camera` and `quality` see `make_renderer`. Without `pin` the environment stays unchanged until `pin_camera` is
    called.
    """

    def __init__(
        self, env: gym.Env[Any, Any], camera: Any = None, quality: Quality = "fast", *, pin: bool = True
    ) -> None:
        check_renders(env)
        self._env, self._own_camera = env, camera is None
        self._trial = _make_trial(env)
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
        if self._own_camera and (scene := _find_scene(self._env)) is not None:
            from vlmrm_gym.rendering.env_viewers import pin_camera

            pin_camera(scene)

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

    def _make_capture(self, renderer: Any, view: EnvRenderer | None = None) -> Capture:
        """Reads states for a renderer; `view` is this environment's own of the same size, if that is another's."""
        if isinstance(renderer, FrameStore):
            return FrameCapture(self._env, renderer)
        kind = _renderer_kind(self._env)
        if kind == "mujoco":
            from vlmrm_gym.capture.mujoco import MuJoCoCapture

            cameras: Any = view or renderer
            return MuJoCoCapture(self._env, renderer, cameras.cameras, own_camera=self._own_camera, trial=self._trial)
        assert kind is not None
        own: Any = self._env.unwrapped
        textured = {"textured": own.textured} if hasattr(own, "textured") else {}
        return ClassicControlCapture(self._env, renderer, {**_CLASSIC_CONTROL[kind][1], **textured})

    def use_renderer(self, renderer: EnvRenderer) -> None:
        """Capture states from now on for a renderer that another environment's view has made."""
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


def make_renderer(
    env: gym.Env[Any, Any],
    render_size: Callable[[int, int], tuple[int, int]] | None = None,
    *,
    camera: Any = None,
    quality: Quality = "fast",
) -> EnvRenderer:
    """Make the renderer of an environment, which stays unchanged.

    Environments with a MuJoCo scene (see `find_scene`), cart-pole and continuous mountain car are drawn from their
    states, at any size. The frames of any other environment are stored as they are. A ValueError for an unknown quality
    or camera, or a camera that the environment cannot render from.

    Args:
        env: An environment made with `render_mode="rgb_array"`.
        render_size: Maps (height, width) of the environment's own frames to the size to draw, in pixels. None: the
            same size.
        camera: MuJoCo only: one camera or several, see `cameras.make_cameras`. None: the environment's own.
        quality: MuJoCo only; see `MuJoCoRenderer`.
    """
    check_choice("quality", quality, QUALITIES)
    unwrapped: Any = env.unwrapped
    kind = _renderer_kind(env)
    cameras = None if camera is None else choose_cameras(env, camera)
    if camera is not None and cameras is None:
        raise ValueError(
            f"`camera` is for MuJoCo environments. Received {short_repr(camera)} for {unwrapped}, which has one "
            "view. Leave it out."
        )
    if kind is None:
        return FrameStore()
    scene = _find_scene(env)
    if scene is not None:
        from vlmrm_gym.rendering.env_viewers import PhysicsScene, find_camera, own_size
        from vlmrm_gym.rendering.mujoco import MuJoCoRenderer

        own = None if isinstance(scene, PhysicsScene) else scene.mujoco_renderer
        size = own_size(scene)
        return MuJoCoRenderer(
            scene.model,
            *(size if render_size is None else render_size(*size)),
            camera=find_camera(scene) if cameras is None else cameras,
            quality=quality,
            visual_options=own and own._vopt,
            max_geom=own.max_geom if own else 10_000,
        )
    size = unwrapped.screen_height, unwrapped.screen_width
    height, width = size if render_size is None else render_size(*size)
    from vlmrm_gym.rendering.classic_control import CartPoleRenderer, MountainCarRenderer

    if kind == "cart-pole":
        return CartPoleRenderer(height, width)
    return MountainCarRenderer(height, width, textured=getattr(unwrapped, "textured", False))


def choose_cameras(env: gym.Env[Any, Any], camera: Any) -> Sequence[Any] | None:
    """The cameras that a user describes, see `cameras.make_cameras`; None if the environment renders from none."""
    scene = _find_scene(env)
    if scene is None:
        return None
    from vlmrm_gym.rendering.cameras import make_cameras
    from vlmrm_gym.rendering.env_viewers import find_camera

    return make_cameras(scene.model, camera, getattr(scene, "reference_camera", None) or find_camera(scene))


def is_drawn_from_states(env: gym.Env[Any, Any]) -> bool:
    """Whether an environment is drawn from its states, as long as these determine what it shows."""
    return _renderer_kind(env) is not None and not _is_redrawn(env)


def _renderer_kind(env: gym.Env[Any, Any]) -> Kind | None:
    """The renderer that draws an environment from its states; None if its frames are stored."""
    if _find_scene(env) is not None:
        return "mujoco"
    if not _is_redrawn(env):
        for kind, (classes, appearance) in _CLASSIC_CONTROL.items():
            own = env.unwrapped
            if type(own) in classes and all(getattr(own, name) == value for name, value in appearance.items()):
                return kind
    return None


def _is_redrawn(env: gym.Env[Any, Any]) -> bool:
    """Whether a wrapper changes what is rendered."""
    while isinstance(env, gym.Wrapper):
        if type(env).render is not gym.Wrapper.render and not isinstance(env, _PASSTHROUGH):
            return True
        env = env.env
    return False


def _find_scene(env: gym.Env[Any, Any]) -> Any:
    """See `find_scene`; None without MuJoCo."""
    if "mujoco" not in sys.modules:
        return None  # nothing has made a model
    from vlmrm_gym.rendering.env_viewers import find_scene

    return find_scene(env)


def _make_trial(env: gym.Env[Any, Any]) -> Any:
    """The `Trial` of an environment with a MuJoCo scene that is drawn by code other than Gymnasium's; else None."""
    if _find_scene(env) is None:
        return None
    from vlmrm_gym.capture.mujoco import Trial
    from vlmrm_gym.capture.watch import renders_as_gymnasium

    is_redrawn = _is_redrawn(env)
    return None if renders_as_gymnasium(env.unwrapped) and not is_redrawn else Trial(env, failed=is_redrawn)
