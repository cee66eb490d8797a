"""One environment, seen from one or several cameras: the features and the frames of its states."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.audit.rewards import state_reward
from vlmrm_gym.capture import StateView
from vlmrm_gym.rendering import States
from vlmrm_gym.rewards import RewardModel
from vlmrm_gym.rewards.heads import Features
from vlmrm_gym.scoring.backends import make_scoring_queue
from vlmrm_gym.scoring.requests import Request

BATCH = 32
"""States that are drawn while those before them are encoded."""


class Scene:
    """An environment, its cameras and the model that encodes what they see: each state is drawn and encoded once.

    Args:
        env: The environment, made with `render_mode="rgb_array"`.
        encoder: The loaded model. If it has no features of single views, its values are made in their place.
        camera: One camera or several: see `vlmrm_gym.VLMReward`.
        progress: Called with the number of states after every batch that was encoded.

    Raises:
        ValueError: A camera does not exist, or the environment does not take cameras.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        encoder: RewardModel,
        camera: Any = None,
        progress: Callable[[int], object] = lambda states: None,
    ) -> None:
        self.env, self._progress = env, progress
        self.view = StateView(env, camera)
        """Captures the environment's states."""
        self.num_views = self.view.num_views
        """Number of cameras, V."""
        self._reward = state_reward(encoder, self.num_views)
        self._queue = make_scoring_queue(lambda device: self._reward, self.view.make_renderer)
        self._queue.batch_size = min(BATCH, self._queue.batch_size)

    def features(self, states: States | NDArray[np.float64], lengths: Sequence[int] = ()) -> Features:
        """The features of N states from every camera, float32 (N, V, D).

        Args:
            states: The states.
            lengths: Of the episodes that they are of, one after the other; for ordered rewards only, of which the
                values are made, float32 (N, 1, 1).
        """
        every, size = _as_states(states), self._queue.batch_size
        if self._queue.info.ordered:
            ends = np.cumsum(lengths)
            return self._make([every[end - length : end] for length, end in zip(lengths, ends, strict=True)])
        return self._make([every[start : start + size] for start in range(0, len(every), size)])

    def _make(self, parts: Sequence[States]) -> Features:
        output = self._queue.output if self._queue.info.ordered else "features"
        requests = [Request(part, np.arange(len(part)), output) for part in parts]
        self._queue.submit(*requests)
        for request in requests:
            if error := request.error():
                raise error
            self._progress(len(request))
        made = np.concatenate([request.values for request in requests])
        return made[:, None, None] if self._queue.info.ordered else made

    def black(self, states: States) -> Features | None:
        """The features of frames of N states if they were black, float32 (N, V, D); None if no frame is seen."""
        if self._queue.info.sees_states:
            return None
        frames = np.zeros_like(self._queue.frames(states))
        with warnings.catch_warnings():  # of a scene that the model does not know
            warnings.simplefilter("ignore", UserWarning)
            if self._queue.info.ordered:
                return self._reward.continue_episode(frames, None)[0][:, None, None]
            return self._reward.features(frames)

    def draw(self, states: States | NDArray[np.float64]) -> NDArray[np.uint8]:
        """Draw states from every camera at the environment's own size: uint8 (N, V, H, W, 3)."""
        return self._queue.frames(_as_states(states), self.view.size)

    def close(self) -> None:
        """Free the graphics resources. The environment stays open."""
        self._queue.close()
        self.view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _as_states(states: States | NDArray[np.float64]) -> States:
    return states if isinstance(states, States) else States(states)
