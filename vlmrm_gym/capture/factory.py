"""Chooses the renderer and the capture of an environment."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv

from vlmrm_gym import envs
from vlmrm_gym.capture.capture import Capture, ClassicControlCapture, FrameCapture
from vlmrm_gym.rendering.states import QUALITIES, EnvRenderer, Quality, StateRenderer
from vlmrm_gym.rendering.stored import FrameStore
from vlmrm_gym.validation import check_choice, short_repr

# MuJoCo, which is optional, and pygame are imported only where they are needed.

Kind = Literal["mujoco", "cart-pole", "mountain car"]


def make_renderer(
    env: gym.Env[Any, Any],
    render_size: Callable[[int, int], tuple[int, int]] | None = None,
    *,
    camera: Any = None,
    quality: Quality = "fast",
) -> EnvRenderer:
    """Make the renderer of an environment, which stays unchanged.

    Environments with a MuJoCo scene (see `find_scene`), cart-pole and continuous mountain car are drawn from their
    states, at any size. The frames of any other environment are stored as they are.

    Args:
        env: An environment made with `render_mode="rgb_array"`.
        render_size: Maps (height, width) of the environment's own frames to the size to draw, in pixels. None: the
            same size.
        camera: MuJoCo only: one camera or several, see `cameras.make_cameras`. None: the environment's own; with
            `pin_camera` it renders with the same one.
        quality: MuJoCo only; see `MuJoCoRenderer`.

    Raises:
        ValueError: `camera` is passed for an environment that cannot render from a chosen camera, a camera does not
            exist, or the quality is unknown.
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


def pin_camera(env: gym.Env[Any, Any]) -> None:
    """Pin the camera of an environment that MuJoCo draws; see `vlmrm_gym.rendering.env_viewers.pin_camera`."""
    scene = _find_scene(env)
    if scene is not None:
        from vlmrm_gym.rendering.env_viewers import pin_camera

        pin_camera(scene)


def make_trial(env: gym.Env[Any, Any]) -> Any:
    """The `Trial` of an environment with a MuJoCo scene that is drawn by code other than Gymnasium's; else None."""
    if _find_scene(env) is None:
        return None
    from vlmrm_gym.capture.trial import Trial
    from vlmrm_gym.capture.viewer_watch import renders_as_gymnasium

    is_redrawn = _is_redrawn(env)
    return None if renders_as_gymnasium(env.unwrapped) and not is_redrawn else Trial(env, failed=is_redrawn)


def make_capture(
    env: gym.Env[Any, Any],
    renderer: EnvRenderer,
    view: EnvRenderer | None = None,
    *,
    own_camera: bool = False,
    trial: Any = None,
) -> Capture:
    """Make the capture that reads an environment's states for a renderer.

    Args:
        env: An environment made with `render_mode="rgb_array"`.
        renderer: Draws the states: made by `make_renderer` for this environment or for an equivalent one.
        view: Where `renderer` was made for another environment: this environment's own renderer, of the same size.
        own_camera: Whether the camera is the environment's own, which it may change.
        trial: Made by `make_trial`.
    """
    if isinstance(renderer, FrameStore):
        return FrameCapture(env, renderer)
    kind = _renderer_kind(env)
    if kind == "mujoco":
        from vlmrm_gym.capture.mujoco import MuJoCoCapture

        return MuJoCoCapture(env, cast(Any, renderer), cast(Any, view), own_camera=own_camera, trial=trial)
    assert kind is not None
    appearance = _CLASSIC_CONTROL[kind][1]
    if hasattr(env.unwrapped, "textured"):
        appearance = {**appearance, "textured": env.unwrapped.textured}  # pyright: ignore[reportAttributeAccessIssue]
    return ClassicControlCapture(env, cast(StateRenderer, renderer), appearance)


def choose_cameras(env: gym.Env[Any, Any], camera: Any) -> Sequence[Any] | None:
    """The cameras that a user describes, one for each view; None if the environment renders from no chosen camera.

    Args:
        env: The environment.
        camera: See `cameras.make_cameras`.

    Raises:
        ValueError: A camera does not exist, two are the same, or the environment cannot render from one of them.
    """
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
