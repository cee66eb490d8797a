"""Many environments as they are seen."""

import pickle
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from vlmrm_gym.rendering.renderer import Quality, Renderer
from vlmrm_gym.rendering.scene import STATE_KEY, CaptureState, Scene, check_renders
from vlmrm_gym.rendering.stored import StoredFrames, check_frame

Flags = NDArray[np.bool_]


class VectorScene:
    """Reads the states of a vector environment after its steps.

    Three kinds are told apart. The environments of a `SyncVectorEnv` are put into `CaptureState`. Of a vector
    environment whose metadata say that it captures states (its environments are in `CaptureState` already, or it is
    `HumanoidVectorEnv`) they are in the infos. Of any other the rendered frames are the states.

    Args:
        env: A vector environment, of environments made with `render_mode="rgb_array"`.
        camera: See `make_renderer`.
        quality: See `make_renderer`.

    Raises:
        ValueError: The environments do not render arrays, or their last states cannot be read; the message says why.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], camera: Any = None, quality: Quality = "fast") -> None:
        self._env: VectorEnv[Any, Any, Any] = env
        self._base: Any = env.unwrapped
        self._scene: Scene | None = None
        captures = env.metadata.get(STATE_KEY)
        if captures and hasattr(self._base, "single_env"):
            self._scene = Scene(self._base.single_env, camera, quality)
        elif isinstance(self._base, SyncVectorEnv):
            self._base.envs = [_capturing(one, camera, quality) for one in self._base.envs]
        elif camera is not None or quality != "fast":
            raise ValueError(
                f"`camera` and `quality` cannot be passed on to the environments of {self._base}. Received {camera!r} "
                f"and {quality!r}. Put each environment into `CaptureState(env, camera=..., quality=...)`."
            )
        else:
            check_renders(env)
            if captures and not all(metadata.get(STATE_KEY) for metadata in self._base.call("metadata")):
                raise ValueError("`env` must have all of its environments in `CaptureState`, or none. Received some.")
        self._captures = isinstance(self._base, SyncVectorEnv) or bool(captures)
        self._mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        if not self._captures and self._mode == AutoresetMode.SAME_STEP:
            raise ValueError(
                f"`autoreset_mode` cannot be same-step for {env}: what it renders after an episode's end is the next "
                "episode's first frame. Use next-step, or put its environments into `vlmrm_gym.rendering.CaptureState`."
            )
        self._only_resets: Flags = np.zeros(env.num_envs, dtype=np.bool_)
        """Where the next step will only reset."""
        stores = not self._captures or (self._scene is None and all(self._base.call("stores_frames")))
        self._check_frames = stores  # at the first reset: an environment can be looked at only then

    def make_renderer(self, size_to_draw: Callable[[int, int], tuple[int, int]]) -> Renderer:
        """What draws the states of all environments.

        Raises:
            ValueError: The environments do not all look alike.
        """
        if not self._captures:
            return StoredFrames()
        if self._scene is not None:
            return self._scene.make_renderer(size_to_draw)
        renderers = self._base.call("make_renderer", size_to_draw)
        first = pickle.dumps(renderers[0])
        for number, renderer in enumerate(renderers):
            if pickle.dumps(renderer) != first:
                raise ValueError(
                    "`env` must have environments that look alike, with states of one size. "
                    f"Received one (number {number}) whose scene differs from that of number 0."
                )
        return renderers[0]

    def reset(self, mask: Flags | None) -> None:
        """To be called when environments have been reset: all, or those of a mask.

        Raises:
            ValueError: They render frames of differing size.
        """
        self._only_resets[slice(None) if mask is None else mask] = False
        if self._check_frames and mask is None:
            shapes = [frame.shape for frame in self._frames()]
            if len(set(shapes)) > 1:
                raise ValueError(f"`env` must have environments that render frames of one size. Received {shapes}.")
            self._check_frames = False

    def render(self) -> Any:
        """A tuple of the frames as a model sees them, at the environments' own size: uint8 (H, W, 3) each."""
        return self._env.render() if self._scene is None else tuple(self._scene.draw(self._base.states))

    def close(self) -> None:
        """Let go of what draws; the environments stay open."""
        if self._scene is not None:
            self._scene.close()

    def capture(self, ends: Flags, infos: dict[str, Any]) -> tuple[NDArray[Any], Flags, dict[str, Any]]:
        """Read the states that a step led to.

        Args:
            ends: bool (num_envs,), where the step has ended an episode.
            infos: What the step returned.

        Returns:
            The states, (num_envs, ...); bool (num_envs,), which of them mean something: where a step only resets an
            environment, it has led to none; and the infos without states.
        """
        expected = ~self._only_resets
        self._only_resets = ends & (self._mode == AutoresetMode.NEXT_STEP)
        if not self._captures:
            return np.stack(self._frames()), expected, infos
        if not isinstance(infos, dict):
            raise TypeError(f"`env` must return infos as a dict. Received {type(infos).__name__}; wrap it afterwards.")
        infos, states, stepped = _without_states(infos)
        if "final_info" in infos:  # of environments that were reset in the same step
            infos["final_info"], final_states, final = _without_states(infos["final_info"])
            if final_states is not None:
                states = final_states if states is None else np.where(_like(final, states), final_states, states)
                stepped = final if stepped is None else stepped | final
        if states is None:
            states, stepped = np.empty((self._env.num_envs, 0)), np.zeros(self._env.num_envs, dtype=np.bool_)
        if not np.array_equal(stepped, expected):
            were_stepped, came_from = np.flatnonzero(expected), np.flatnonzero(stepped)
            raise RuntimeError(
                f"Environments {were_stepped} were stepped, but states came from {came_from}: "
                'something between them and VLMRewardVectorEnv drops `infos["vlm_state"]`, or scores them already.'
            )
        return states, stepped, infos

    def _frames(self) -> list[NDArray[np.uint8]]:
        frames = self._env.render()
        count = 0 if frames is None else len(frames)
        if frames is None or count != self._env.num_envs:
            raise ValueError(f"`env` must render a frame for each of {self._env.num_envs}. Received {count} frames.")
        return [check_frame(frame) for frame in frames]


class _Captured(CaptureState):
    """Put around an environment here, not by the user."""


def _capturing(env: gym.Env[Any, Any], camera: Any, quality: Quality) -> CaptureState:
    if isinstance(env, _Captured):
        env = env.env
    if isinstance(env, CaptureState):
        if camera is None and quality == "fast":
            return env
        env = env.env
    return _Captured(env, camera=camera, quality=quality)


def _without_states(infos: dict[str, Any]) -> tuple[dict[str, Any], Any, Any]:
    """Infos, and what was taken out of them: states (num_envs, ...), bool (num_envs,); None where there are none."""
    rest = {key: value for key, value in infos.items() if key not in (STATE_KEY, f"_{STATE_KEY}")}
    return rest, infos.get(STATE_KEY), infos.get(f"_{STATE_KEY}")


def _like(mask: Flags, states: NDArray[Any]) -> Flags:
    return mask.reshape(-1, *(1,) * (states.ndim - 1))
