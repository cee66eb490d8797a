"""Mountain car as the paper uses it: Gymnasium's, with an absorbing goal in place of the termination."""

from typing import Any

import numpy as np
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv

from vlmrm_gym.checks import check_flag


class MountainCar(Continuous_MountainCarEnv):
    """Gymnasium's MountainCarContinuous-v0, in which the car stays at the goal once it has reached it.

    Nothing terminates: that would give the task away. Up to the step that reaches the goal observations, rewards and
    seeding are MountainCarContinuous-v0's to the bit; from then on the car stands where it arrived, and the reward is
    what the action costs.

    `info["success"]` (bool) says whether the goal has been reached in this episode.

    Observation: float32 (2,): position [-1.2, 0.6] and velocity [-0.07, 0.07]. Action: float32 (1,), the force, from -1
    to 1.

    Args:
        render_mode: As in Gymnasium.
        textured: Whether `vlmrm_gym.rendering` draws it photo-like, for scoring and in registered tasks; `render` of
            this class alone draws as Gymnasium does.
    """

    def __init__(self, render_mode: str | None = None, *, textured: bool = True) -> None:
        check_flag("textured", textured)
        super().__init__(render_mode=render_mode)
        self.textured = textured
        self._arrived = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start in the valley."""
        self._arrived = False
        return super().reset(seed=seed, options=options)

    def step(  # pyright: ignore[reportIncompatibleMethodOverride]  (the base class promises the literal False)
        self, action: np.ndarray
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Push the car with a force from -1 to 1."""
        if self._arrived:
            return self.state.copy(), -0.1 * float(action[0]) ** 2, False, False, {"success": True}
        _, reward, self._arrived, _, _ = super().step(action)
        if self._arrived:
            self.state[1] = 0.0
        return self.state.copy(), float(reward), False, False, {"success": self._arrived}
