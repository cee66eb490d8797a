"""Cart-pole as in the paper: Gymnasium's, without the termination, which would leak the task."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

from vlmrm_gym.tasks.known_states import Numbers, Rows, StatePath, TaskStates


class CartPole(CartPoleEnv):
    """Gymnasium's CartPole-v1 without termination.

    The pole's angle is wrapped to (-pi, pi], and the cart stops at the ends of its track. Up to the step at which
    CartPole-v1 would terminate, observations, rewards and seeding are bitwise those of CartPole-v1.

    The reward is CartPole-v1's: 1.0 for every action taken while the pole was up and the cart on its track, else 0.0.
    `info["success"]` (bool) is whether both hold after the action.

    Observation: float32 (4,): cart position [-2.4, 2.4] and velocity, pole angle (-pi, pi] in radians (positive: to
    the right) and angular velocity. Action: 0 pushes the cart to the left, 1 to the right.
    """

    DRAWN_AS = CartPoleEnv
    """Frames of this class are those of this one."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        high = np.array([2 * self.x_threshold, np.inf, np.pi, np.inf], dtype=np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)

    def step(  # pyright: ignore[reportIncompatibleMethodOverride]  (the base class promises the literal False)
        self, action: int | np.ndarray
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Push the cart to the left (0) or to the right (1) for 0.02 s."""
        was_up = self.is_up()
        self.steps_beyond_terminated = None  # after a fall the base class warns, and gives no reward
        super().step(action)
        assert self.state is not None
        x, x_dot, theta, theta_dot = self.state
        if abs(x) >= self.x_threshold:
            x = np.clip(x, -self.x_threshold, self.x_threshold)
            if x * x_dot > 0:
                x_dot = 0.0
        if abs(theta) > np.pi or theta == -np.pi:
            theta = np.pi - (np.pi - theta) % (2 * np.pi)
        self.state = np.array((x, x_dot, theta, theta_dot), dtype=np.float64)
        observation = self.state.astype(np.float32)
        return observation, float(was_up), False, False, {"success": self.is_up()}

    def render(self) -> np.ndarray | None:
        """Render the frame, uint8 (400, 600, 3), in render mode "rgb_array"."""
        if self.render_mode == "rgb_array" and self.screen is None:
            import pygame

            # The base class would initialise the display first, which a server does not have.
            self.screen = pygame.Surface((self.screen_width, self.screen_height))
        return super().render()

    def is_up(self) -> bool:
        """Tell whether the pole is within 12 degrees of upright and the cart has not reached an end of its track."""
        assert self.state is not None, "Call reset before using step method."
        x, _, theta, _ = self.state
        return bool(abs(theta) <= self.theta_threshold_radians and abs(x) < self.x_threshold)


class CartPoleStates(TaskStates):
    """Position of the cart in metres and angle of the pole in radians, 0 upright: float64 (N, 2)."""

    dimensions = 2

    def __init__(self) -> None:
        env = CartPoleEnv()
        self._end, self._fallen = env.x_threshold, env.theta_threshold_radians

    def grade(self, states: Rows) -> Numbers:
        """Score the pole's angle: 1 upright, 0 upside down. An end of the track counts as much as a fallen pole.

        From three quarters of the way to an end on, the position counts if it is worse than the angle.
        """
        position, angle = np.abs(states).T
        return 1 - np.maximum(angle, self._fallen * (4 * position / self._end - 3)) / np.pi

    def margins(self, states: Rows) -> Mapping[str, Numbers]:
        """See `TaskStates`."""
        position, angle = states.T
        return {
            "pole upright": (self._fallen - np.abs(angle)) / np.deg2rad(20),
            "cart on its track": np.nextafter(self._end, 0) - np.abs(position),
        }

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Sample states anywhere on the track, half of them upright, half at any angle."""
        limits = np.where(np.arange(count) % 2, np.pi, self._fallen)
        return np.stack([rng.uniform(-0.95, 0.95, count) * self._end, rng.uniform(-limits, limits)], axis=1)

    def goals(self, count: int, rng: np.random.Generator) -> Rows:
        """See `TaskStates`."""
        limits = 0.95 * np.array([self._end, self._fallen])
        return rng.uniform(-limits, limits, (count, 2))

    def example_goal(self) -> Numbers:
        """Return the upright pole in the middle of the track."""
        return np.zeros(2)

    def perturb(self, states: Rows, offsets: NDArray[np.float64]) -> Rows:
        """See `TaskStates`."""
        position, angle = (states + offsets * [0.3, np.deg2rad(15)]).T
        return np.stack([np.clip(position, -self._end, self._end), (angle + np.pi) % (2 * np.pi) - np.pi], axis=1)

    def paths(self) -> Sequence[StatePath]:
        """Return a line over the angle, and one over the position with the pole upright."""
        angles, positions = np.linspace(-180, 180, 73), np.linspace(-self._end, self._end, 49)
        return [
            StatePath(
                title="Angle of the pole, cart in the middle",
                axis="angle (degrees from upright)",
                positions=angles,
                states=np.deg2rad(angles)[:, None] * [0, 1],
            ),
            StatePath(
                title="Position of the cart, pole upright",
                axis="position (metres)",
                positions=positions,
                states=positions[:, None] * [1, 0],
            ),
        ]
