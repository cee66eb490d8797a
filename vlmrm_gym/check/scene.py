"""Scores and draws the states of one environment, seen from one or several cameras."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.capture import StateView
from vlmrm_gym.rendering import Quality, States
from vlmrm_gym.rewards.multi_prompt import MultiPromptReward

BATCH = 32
"""States that are drawn while those before them are encoded."""


class Scene:
    """An environment, its cameras and a reward model: each state is drawn and encoded once for all prompts and alphas.

    Args:
        env: The environment, made with `render_mode="rgb_array"`.
        reward: The rewards: K of them.
        camera: One camera or several: see `vlmrm_gym.VLMReward`.
        quality: See `vlmrm_gym.VLMReward`.
        progress: Called with the number of states after every batch that was scored.

    Raises:
        ValueError: A camera does not exist, or the environment does not take cameras.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        reward: MultiPromptReward,
        camera: Any = None,
        quality: Quality = "fast",
        progress: Callable[[int], object] = lambda states: None,
    ) -> None:
        self.env, self._reward, self._progress = env, reward, progress
        self.view = StateView(env, camera, quality)
        """Captures the environment's states."""
        self._renderer = self.view.make_renderer(reward.render_size)
        self._encoder = ThreadPoolExecutor(1, "vlmrm-encode")

    @property
    def num_views(self) -> int:
        """Number of cameras, V."""
        return self.view.num_views

    def score(self, states: States | NDArray[np.float64]) -> NDArray[np.float32]:
        """Score states from every camera by every reward: float32 (N, V, K)."""
        every = _as_states(states)
        parts: list[Future[NDArray[np.float32]]] = []
        for start in range(0, len(every), BATCH):
            frames = every[start : start + BATCH].draw(self._renderer)
            if parts:
                parts[-1].result()  # frames of two batches are in memory at most
            parts.append(self._encoder.submit(self._encode, frames if frames.ndim == 5 else frames[:, None]))
        return np.concatenate([part.result() for part in parts])

    def score_frames(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Score frames, uint8 (N, H, W, 3): float32 (N, K)."""
        return self._reward(frames)

    def draw(self, states: States | NDArray[np.float64]) -> NDArray[np.uint8]:
        """Draw states from every camera at the environment's own size: uint8 (N, V, H, W, 3)."""
        every = _as_states(states)
        if every.rows.dtype == np.uint8:
            return every.rows if every.rows.ndim == 5 else every.rows[:, None]
        drawn = self.view.draw(every.rows, every.changes)
        height, width = drawn.shape[1], drawn.shape[2] // self.num_views
        return drawn.reshape(len(every), height, self.num_views, width, 3).swapaxes(1, 2)

    def close(self) -> None:
        """Free the graphics resources. The environment stays open."""
        self._encoder.shutdown(cancel_futures=True)
        self._renderer.close()
        self.view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encode(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        flat = frames.reshape(-1, *frames.shape[2:])
        size = self._reward.microbatch_size
        rewards = np.concatenate([self._reward(flat[start : start + size]) for start in range(0, len(flat), size)])
        self._progress(len(frames))
        return rewards.reshape(*frames.shape[:2], -1)


def _as_states(states: States | NDArray[np.float64]) -> States:
    return states if isinstance(states, States) else States(states)
