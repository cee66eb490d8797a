"""Which renderer draws an environment."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv

from vlmrm_gym import envs
from vlmrm_gym.checks import check_choice
from vlmrm_gym.rendering.renderer import QUALITIES, Quality, Renderer
from vlmrm_gym.rendering.stored import StoredFrames

# Mujoco and pygame are imported when something is to be drawn with them.


def make_renderer(
    env: gym.Env[Any, Any],
    size_to_draw: Callable[[int, int], tuple[int, int]] | None = None,
    *,
    camera: Any = None,
    quality: Quality = "fast",
) -> Renderer:
    """The renderer for what an environment shows.

    Gymnasium's MuJoCo environments (and others on `MujocoEnv`, unless they draw themselves), cart-pole and continuous
    mountain car are drawn from their states, at any size. Of any other environment the frames are stored as they are.

    Args:
        env: An environment made with `render_mode="rgb_array"`.
        size_to_draw: From height and width of the environment's own frames to those of the drawings, in pixels. None
            draws at the environment's own size.
        camera: MuJoCo only; see `cameras.make_camera`. None: the environment's own.
        quality: MuJoCo only; see `MuJoCoRenderer`.

    Raises:
        ValueError: A camera for a scene that is not MuJoCo's, or that does not exist; an unknown quality.
    """
    check_choice("quality", quality, QUALITIES)
    unwrapped = env.unwrapped
    drawn_as = _drawn_as(env)
    if camera is not None and drawn_as != "mujoco":
        raise ValueError(f"`camera` is for MuJoCo environments. Received {camera!r} for {unwrapped}.")
    if drawn_as is None:
        return StoredFrames()
    height, width = _shape(unwrapped)
    if size_to_draw is not None:
        height, width = size_to_draw(height, width)
    if drawn_as == "mujoco":
        from vlmrm_gym.rendering.mujoco import MuJoCoRenderer, own_camera

        gymnasium_renderer = unwrapped.mujoco_renderer  # pyright: ignore[reportAttributeAccessIssue]
        return MuJoCoRenderer(
            unwrapped.model,  # pyright: ignore[reportAttributeAccessIssue]
            height,
            width,
            camera=own_camera(unwrapped) if camera is None else camera,
            quality=quality,
            visual_options=gymnasium_renderer._vopt,
            max_geom=gymnasium_renderer.max_geom,
        )
    if drawn_as == "cart-pole":
        from vlmrm_gym.rendering.classic_control import CartPoleRenderer

        return CartPoleRenderer(height, width)
    from vlmrm_gym.rendering.classic_control import MountainCarRenderer

    return MountainCarRenderer(height, width, textured=getattr(unwrapped, "textured", False))


def is_drawn_from_states(env: gym.Env[Any, Any]) -> bool:
    """Whether `make_renderer` draws this environment, rather than stores its frames."""
    return _drawn_as(env) is not None


def _drawn_as(env: gym.Env[Any, Any]) -> Literal["mujoco", "cart-pole", "mountain car"] | None:
    """Who draws an environment, if it is one of those that can be drawn from their states."""
    while isinstance(env, gym.Wrapper):
        if type(env).render is not gym.Wrapper.render and not isinstance(env, _CHECKERS):
            return None  # this wrapper changes what is rendered
        env = env.env
    for kind, (classes, looks) in _CLASSIC.items():
        if type(env) in classes and all(getattr(env, name) == value for name, value in looks.items()):
            return kind
    try:
        from gymnasium.envs.mujoco.mujoco_env import MujocoEnv
    except gym.error.DependencyNotInstalled:
        return None
    return "mujoco" if type(env).render is MujocoEnv.render else None


_CLASSIC: Mapping[Literal["cart-pole", "mountain car"], tuple[tuple[type, ...], Mapping[str, float]]] = {
    "cart-pole": (
        (CartPoleEnv, envs.CartPole),
        {"length": 0.5, "x_threshold": 2.4, "screen_width": 600, "screen_height": 400},
    ),
    "mountain car": (
        (Continuous_MountainCarEnv, envs.MountainCar),
        {"min_position": -1.2, "max_position": 0.6, "goal_position": 0.45, "screen_width": 600, "screen_height": 400},
    ),
}
"""Classes, and what their drawings depend on beside the state; changed ones draw themselves."""

_CHECKERS = (gym.wrappers.PassiveEnvChecker, gym.wrappers.OrderEnforcing)
"""Wrappers that only look at what `render` returns, or when it is called."""


def _shape(unwrapped: Any) -> tuple[int, int]:
    """Height and width of what an environment that is drawn from states shows."""
    if hasattr(unwrapped, "screen_height"):
        return unwrapped.screen_height, unwrapped.screen_width
    return unwrapped.height, unwrapped.width
