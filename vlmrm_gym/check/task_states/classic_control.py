"""States of cart-pole and mountain car."""

from collections.abc import Mapping, Sequence

import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv, Continuous_MountainCarEnv
from numpy.typing import NDArray

from vlmrm_gym.check.task_states.base import Numbers, Rows, StatePath


class CartPoleStates:
    """Position of the cart in metres and angle of the pole in radians, 0 upright: float64 (N, 2)."""

    dimensions = 2
    has_judge = True

    def __init__(self) -> None:
        env = CartPoleEnv()
        self._end, self._fallen = env.x_threshold, env.theta_threshold_radians

    def margins(self, states: Rows) -> Mapping[str, Numbers]:
        """See `TaskStates`."""
        position, angle = states.T
        return {
            "pole upright": (self._fallen - np.abs(angle)) / np.deg2rad(20),
            "cart on its track": np.nextafter(self._end, 0) - np.abs(position),
        }

    def succeeds(self, states: Rows) -> NDArray[np.bool_]:
        """See `TaskStates`."""
        return np.min(list(self.margins(states).values()), axis=0) >= 0

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Half of them upright, half at any angle; anywhere on the track."""
        limits = np.where(np.arange(count) % 2, np.pi, self._fallen)
        return np.stack([rng.uniform(-0.95, 0.95, count) * self._end, rng.uniform(-limits, limits)], axis=1)

    def goals(self, count: int, rng: np.random.Generator) -> Rows:
        """See `TaskStates`."""
        limits = 0.95 * np.array([self._end, self._fallen])
        return rng.uniform(-limits, limits, (count, 2))

    def perturb(self, states: Rows, offsets: NDArray[np.float64]) -> Rows:
        """See `TaskStates`."""
        position, angle = (states + offsets * [0.3, np.deg2rad(15)]).T
        return np.stack([np.clip(position, -self._end, self._end), (angle + np.pi) % (2 * np.pi) - np.pi], axis=1)

    def paths(self) -> Sequence[StatePath]:
        """Over the angle in the middle of the track, and over the position with the pole upright."""
        angles, positions = np.linspace(-180, 180, 73), np.linspace(-self._end, self._end, 49)
        still = np.zeros(len(angles))
        return [
            StatePath(
                title="Angle of the pole, cart in the middle",
                axis="angle (degrees from upright)",
                positions=angles,
                states=np.stack([still, np.deg2rad(angles)], axis=1),
            ),
            StatePath(
                title="Position of the cart, pole upright",
                axis="position (metres)",
                positions=positions,
                states=np.stack([positions, np.zeros(len(positions))], axis=1),
            ),
        ]


class MountainCarStates:
    """Position of the car, float64 (N, 1)."""

    dimensions = 1
    has_judge = True

    def __init__(self) -> None:
        env = Continuous_MountainCarEnv()
        self._low, self._high, self._goal = env.min_position, env.max_position, env.goal_position

    def margins(self, states: Rows) -> Mapping[str, Numbers]:
        """See `TaskStates`."""
        return {"car at the flag": (states[:, 0] - self._goal) / 0.2}

    def succeeds(self, states: Rows) -> NDArray[np.bool_]:
        """See `TaskStates`."""
        return states[:, 0] >= self._goal

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """A quarter of them at the flag, the others anywhere."""
        low = np.where(np.arange(count) % 4, self._low, self._goal)
        return rng.uniform(low, self._high, count)[:, None]

    def goals(self, count: int, rng: np.random.Generator) -> Rows:
        """See `TaskStates`."""
        return rng.uniform(self._goal, self._high, (count, 1))

    def perturb(self, states: Rows, offsets: NDArray[np.float64]) -> Rows:
        """See `TaskStates`."""
        return np.clip(states + 0.1 * offsets, self._low, self._high)

    def paths(self) -> Sequence[StatePath]:
        """Over the position."""
        positions = np.linspace(self._low, self._high, 91)
        return [
            StatePath(
                title="Position of the car", axis="position", positions=positions, states=positions[:, None].copy()
            )
        ]
