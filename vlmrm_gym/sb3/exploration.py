"""Exploration with noise that repeats over several steps."""

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.noise import ActionNoise

from vlmrm_gym.validation import check_integer, check_positive_integer, is_number, short_repr


class ActionRepeatNoise(ActionNoise):
    """Uniform noise that is repeated for several steps, at the beginning of training.

    Where the reward rises only after many actions in one direction, independent noise does not explore enough: a car
    in a valley has to swing up. For `action_noise` of off-policy algorithms.

    Args:
        size: Number of action dimensions.
        sigma: Noise is uniform from -sigma to sigma. Stable-Baselines3 adds it to actions scaled to [-1, 1], and clips.
        hold: Number of steps for which the same noise is repeated.
        steps: Number of steps of one environment after which the noise is zero.

    Raises:
        ValueError: A parameter is out of range.
    """

    def __init__(self, size: int, *, sigma: float = 2.0, hold: int = 30, steps: int = 1_000) -> None:
        check_positive_integer("size", size)
        if not is_number(sigma) or not 0 < sigma < float("inf"):
            raise ValueError(f"`sigma` must be a finite number above 0. Received {short_repr(sigma)}.")
        check_positive_integer("hold", hold)
        check_integer("steps", steps, minimum=0)
        super().__init__()
        self._size, self._sigma, self._hold, self._steps_left = size, sigma, hold, steps
        self.reset()

    def __call__(self) -> NDArray[np.float32]:
        """The noise of the next step: float32 (size,)."""
        if self._steps_left <= 0:
            return np.zeros(self._size, dtype=np.float32)
        self._steps_left -= 1
        if self._num_repeats == self._hold:
            self.reset()
        self._num_repeats += 1
        return self._noise

    def reset(self) -> None:
        """Draw new noise."""
        self._num_repeats = 0
        self._noise = np.random.uniform(-self._sigma, self._sigma, self._size).astype(np.float32)
