"""Mountain car as in the paper: Gymnasium's, with an absorbing goal instead of termination."""

from typing import Any

import numpy as np
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv

from vlmrm_gym.validation import check_flag


class MountainCar(Continuous_MountainCarEnv):
    """Gymnasium's MountainCarContinuous-v0 with an absorbing goal.

    Nothing terminates, since that would leak the task. Up to the step that reaches the goal, observations, rewards and
    seeding are bitwise those of MountainCarContinuous-v0. From then on the car stays where it is, and the reward is the
    action cost.

    `info["success"]` (bool) is whether the goal has been reached in this episode.

    Observation: float32 (2,): position [-1.2, 0.6] and velocity [-0.07, 0.07]. Action: float32 (1,), the force, from -1
    to 1.

    Args:
        render_mode: As in Gymnasium.
        textured: Whether `vlmrm_gym.rendering` renders it photo-like, for scoring and in registered tasks. `render` of
            this class itself draws as Gymnasium does.
    """

    def __init__(self, render_mode: str | None = None, *, textured: bool = True) -> None:
        check_flag("textured", textured)
        super().__init__(render_mode=render_mode)
        self.textured = textured
        self._at_goal = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start in the valley."""
        self._at_goal = False
        return super().reset(seed=seed, options=options)

    def step(  # pyright: ignore[reportIncompatibleMethodOverride]  (the base class promises the literal False)
        self, action: np.ndarray
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Push the car with a force from -1 to 1."""
        if self._at_goal:
            return self.state.copy(), -0.1 * float(action[0]) ** 2, False, False, {"success": True}
        _, reward, self._at_goal, _, _ = super().step(action)
        if self._at_goal:
            self.state[1] = 0.0
        return self.state.copy(), float(reward), False, False, {"success": self._at_goal}
