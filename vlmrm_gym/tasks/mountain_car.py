"""Mountain car as in the paper: Gymnasium's, with an absorbing goal instead of termination."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv
from numpy.typing import NDArray

from vlmrm_gym._util.validation import check_flag
from vlmrm_gym.tasks.known_states import Numbers, Rows, StatePath, TaskStates


class MountainCar(Continuous_MountainCarEnv):
    """Gymnasium's MountainCarContinuous-v0 with an absorbing goal.

    Nothing terminates, since that would leak the task. Up to the step that reaches the goal, observations, rewards and
    seeding are bitwise those of MountainCarContinuous-v0. From then on the car stays where it is, and the reward is the
    action cost. `info["success"]` (bool) is whether the goal has been reached in this episode.

    Observation: float32 (2,): position [-1.2, 0.6] and velocity [-0.07, 0.07]. Action: float32 (1,), a force [-1, 1].

    `textured` is whether `vlmrm_gym.states` renders it photo-like, for scoring and in registered tasks. `render` of
    this class itself draws as Gymnasium does.
    """

    DRAWN_AS = Continuous_MountainCarEnv
    """Frames of this class are those of this one, but for `textured`."""

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


class MountainCarStates(TaskStates):
    """Position of the car, float64 (N, 1)."""

    dimensions = 1

    def __init__(self) -> None:
        env = Continuous_MountainCarEnv()
        self._low, self._high, self._goal = env.min_position, env.max_position, env.goal_position

    def grade(self, states: Rows) -> Numbers:
        """Score the position: 0 at the left end, 1 from the flag on."""
        return np.clip((states[:, 0] - self._low) / (self._goal - self._low), 0, 1)

    def margins(self, states: Rows) -> Mapping[str, Numbers]:
        """See `TaskStates`."""
        return {"car at the flag": (states[:, 0] - self._goal) / 0.2}

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Sample positions, a quarter of them at the flag."""
        low = np.where(np.arange(count) % 4, self._low, self._goal)
        return rng.uniform(low, self._high, count)[:, None]

    def goals(self, count: int, rng: np.random.Generator) -> Rows:
        """See `TaskStates`."""
        return rng.uniform(self._goal, self._high, (count, 1))

    def example_goal(self) -> Numbers:
        """Return the position of the flag."""
        return np.array([self._goal])

    def perturb(self, states: Rows, offsets: NDArray[np.float64]) -> Rows:
        """See `TaskStates`."""
        return np.clip(states + 0.1 * offsets, self._low, self._high)

    def paths(self) -> Sequence[StatePath]:
        """Return a line over the position."""
        positions = np.linspace(self._low, self._high, 91)
        states = positions[:, None].copy()
        return [StatePath(title="Position of the car", axis="position", positions=positions, states=states)]
