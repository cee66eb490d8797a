"""Environments and success functions that checks are about, for tests; the command imports them by name."""

from contextlib import contextmanager

import changing_env
import gymnasium as gym
import mujoco
import numpy as np
import pytest

from vlmrm_gym.tasks.cartpole import CartPole
from vlmrm_gym.tools.check import exploits, samples


@contextmanager
def few_states(steps=25, evaluations=110):
    """Checks take seconds in this context."""
    sizes = {
        samples: {"ROLLOUTS": 2, "STEPS": steps, "AROUND": 60, "GOALS": 12},
        exploits: {"STARTS": 16, "EVALUATIONS": evaluations},
    }
    with pytest.MonkeyPatch.context() as patch:
        for module, own in sizes.items():
            for name, size in own.items():
                patch.setattr(module, name, size)
        yield


class Framed(gym.Wrapper):
    """Draws a border: its frames are no longer those of its states."""

    def render(self):
        frame = self.env.render()[::4, ::4].copy()
        frame[:2] = 128
        return frame


def framed_cart_pole():
    """Cart-pole whose frames are stored, since a wrapper changes them."""
    return Framed(CartPole("rgb_array"))


class OneStep(gym.Env):
    """Every episode ends after one step, which shows the action as a grey value."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"
    observation_space = gym.spaces.Box(0, 1, (1,), np.float64)
    action_space = gym.spaces.Discrete(5)
    shown = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.shown = 0
        return np.zeros(1), {}

    def step(self, action):
        self.shown = int(action)
        return np.zeros(1), 0.0, True, False, {"success": self.shown == 4}

    def render(self):
        return np.full((32, 32, 3), 50 * self.shown, dtype=np.uint8)


def one_step():
    return OneStep()


def recoloured():
    """A box whose colour is another one in every episode."""
    return changing_env.make("geom recoloured", episode_length=20)


class OtherModel(changing_env.ChangingEnv):
    """Has another body after the first episode."""

    resets = 0

    def reset_model(self):
        self.resets += 1
        if self.resets == 2:
            self.model = changing_env.ChangingEnv(extra='<geom size=".1"/>').model
            self.data = mujoco.MjData(self.model)
        return super().reset_model()


def is_turned(states):
    """The box of `changing_env` is turned to a side."""
    return states[:, 0] > 0.1


def no_env():
    return "an environment"


def silent_env():
    return gym.make("CartPole-v1")


def is_nearly_upright(states):
    """InvertedPendulum-v5: what all states of rollouts are, which end at 0.2 radians."""
    return np.abs(states[:, 1]) < 0.5


def is_upright(states):
    return np.abs(states[:, 1]) < 0.02


def of_all_states(states):
    return True


def raises(states):
    raise KeyError("no such state")
