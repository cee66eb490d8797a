"""A world of another package: one file, with the environment, what is known of its states, and the record."""

import tempfile
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_env import MujocoEnv
from gymnasium.utils import EzPickle

from vlmrm_gym.tasks import Task, register
from vlmrm_gym.tasks.mujoco_states import MuJoCoStates

XML = """
<mujoco>
  <option timestep=".01"/>
  <statistic extent="1.5" center="0 0 .5"/>
  <visual><quality shadowsize="128" offsamples="0"/></visual>
  <worldbody>
    <light pos="0 -2 3" dir="0 .5 -1"/>
    <geom type="plane" size="2 2 .1" rgba=".4 .5 .6 1"/>
    <body pos="0 0 .8">
      <joint name="hinge" axis="0 1 0" damping=".1" limited="true" range="-180 180"/>
      <geom type="capsule" fromto="0 0 0 0 0 .5" size=".05" rgba=".9 .3 .1 1"/>
    </body>
  </worldbody>
  <actuator><motor joint="hinge" ctrlrange="-1 1"/></actuator>
</mujoco>
"""
LIMIT = 0.3
"""Largest angle of a success, in radians from upright."""


class Rod(MujocoEnv, EzPickle):
    """A rod on a hinge; `hanging` starts it upside down."""

    metadata = {"render_modes": ["human", "rgb_array", "depth_array", "rgbd_tuple"], "render_fps": 50}  # noqa: RUF012

    def __init__(self, render_mode=None, *, hanging=True):
        EzPickle.__init__(self, render_mode, hanging=hanging)
        self.hanging = hanging
        space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rod.xml"
            file.write_text(XML)
            super().__init__(str(file), 2, space, render_mode=render_mode, width=64, height=48)

    def reset_model(self):
        angle = self.np_random.uniform(-0.1, 0.1) + (np.pi - 0.2 if self.hanging else 0)
        self.set_state(np.array([angle]), np.zeros(1))
        return self._observe()

    def step(self, action):
        self.do_simulation(action, self.frame_skip)
        angle = self.data.qpos[0]
        return self._observe(), float(np.cos(angle)), False, False, {"success": bool(abs(angle) <= LIMIT)}

    def _observe(self):
        return np.concatenate([self.data.qpos, self.data.qvel])


class RodStates(MuJoCoStates):
    """The angle in radians: float64 (N, 1)."""

    def __init__(self):
        super().__init__(mujoco.MjModel.from_xml_string(XML), np.zeros((1, 1)), lambda states: self.near(states))

    @staticmethod
    def near(states):
        return np.abs(states[:, 0]) <= LIMIT

    def grade(self, states):
        return 1 - np.abs(states[:, 0]) / np.pi

    def sample(self, count, rng):
        limits = np.where(np.arange(count) % 2, np.pi, LIMIT)
        return rng.uniform(-limits, limits)[:, None]

    def goals(self, count, rng):
        return rng.uniform(-LIMIT, LIMIT, (count, 1))

    def example_goal(self):
        return np.zeros(1)


register(
    Task(
        id="Worlds/Rod-v0",
        env="worlds:Rod",
        kwargs={"hanging": True},
        prompt="a rod that stands upright",
        baseline="a rod",
        camera={"distance": 2.0, "azimuth": 90.0, "elevation": -5.0, "lookat": [0.0, 0.0, 0.8]},
        episode_length=10,
        success_threshold=0.5,
        states="worlds:RodStates",
        training={"algorithm": "SAC", "n_steps": 40, "n_envs_per_worker": 2, "policy_kwargs": {"net_arch": [8]}},
    )
)
