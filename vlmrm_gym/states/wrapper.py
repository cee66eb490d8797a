"""The wrapper that puts an environment's states into its infos."""

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from vlmrm_gym._util.validation import as_task_reward
from vlmrm_gym.infos import SCENE_KEY, SCENE_UPDATE_KEY, STATE_KEY
from vlmrm_gym.states.scene_changes import SceneChange, SceneUpdate
from vlmrm_gym.states.states import EnvRenderer, Quality
from vlmrm_gym.states.view import StateView


class CaptureState(gym.Wrapper[Any, Any, Any, Any]):
    """Puts the state that a step led to into its info as `info["vlm_state"]`, to be scored later or elsewhere.

    A vector environment may reset a sub-environment in the step that ends its episode: the wrapper reads the state
    before. `VLMRewardVectorEnv` wraps the environments of a `SyncVectorEnv` itself. Wrap those of an `AsyncVectorEnv`
    yourself, so that states, and not frames, leave its processes:

    >>> import gymnasium as gym
    >>> from vlmrm_gym import CaptureState
    >>> env = CaptureState(gym.make("CartPole-v1", render_mode="rgb_array"))
    >>> observation, info = env.reset(seed=0)
    >>> env.step(1)[4]["vlm_state"].shape
    (2,)

    Args:
        env: An environment made with `render_mode="rgb_array"`.
        camera: See `vlmrm_gym.VLMReward`.
        quality: See `vlmrm_gym.VLMReward`.

    Raises:
        ValueError: The environment does not render arrays; or the camera or quality does not fit it.
    """

    def __init__(self, env: gym.Env[Any, Any], *, camera: Any = None, quality: Quality = "fast") -> None:
        super().__init__(env)
        scene = f"{type(env.unwrapped).__module__}:{type(env.unwrapped).__qualname__}"
        self.metadata = {**env.metadata, STATE_KEY: True, SCENE_KEY: scene}
        self._view = StateView(env, camera, quality)
        self.num_views, self.stores_frames = self._view.num_views, self._view.stores_frames
        self.use_renderer = self._view.use_renderer
        self._sent: SceneChange | None = None
        """The scene change that the infos so far add up to."""
        self._num_changes = 0
        self._begins = False
        """Whether the episode has had no action yet."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._view.reset()
        self._begins = True
        return observation, info

    def first_state(self) -> tuple[Any, SceneChange | None] | None:
        """Capture the state before the first action, see `StateView.capture`; None if there has been an action."""
        return self._view.capture() if self._begins else None

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, then read its state.

        The observation is a copy: environments that reuse their array overwrite it in the next reset.

        Raises:
            ValueError: The environment's own reward is not one number.
        """
        begins, self._begins = self._begins, False
        observation, reward, terminated, truncated, info = self.env.step(action)
        state, change = self._view.capture()
        info = {**info, STATE_KEY: state}
        if change is not self._sent or self._num_changes:
            update = SceneUpdate.between(self._num_changes, self._sent, change, whole=begins)
            info[SCENE_UPDATE_KEY], self._sent = update, change
            self._num_changes += update.count
        return copy.deepcopy(observation), as_task_reward(self.env, reward), terminated, truncated, info

    def make_renderer(self, render_size: Callable[[int, int], tuple[int, int]]) -> EnvRenderer:
        """Make the renderer of the states from now on; see `StateView.make_renderer`."""
        self._sent, self._num_changes = None, 0
        return self._view.make_renderer(render_size)

    def render(self) -> Any:
        """Render the current frame, as the model sees it but at the environment's own size: uint8 (H, W, 3)."""
        return self._view.render()

    def close(self) -> None:
        """Close the environment, and free the graphics resources."""
        self._view.close()
        super().close()


class AutoCaptureState(CaptureState):
    """The `CaptureState` that `VLMRewardVectorEnv` adds."""
