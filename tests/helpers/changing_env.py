"""An environment that changes its MuJoCo model: importable by the processes of an AsyncVectorEnv."""

import tempfile
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_env import MujocoEnv
from gymnasium.utils import EzPickle

XML = """
<mujoco>
  <statistic extent="3" center="0 0 .5"/>
  <visual><headlight ambient=".2 .2 .2"/><map znear=".01"/><quality shadowsize="128" offsamples="0"/></visual>
  <asset>
    <texture name="checks" type="2d" builtin="checker" width="64" height="64" rgb1=".9 .2 .2" rgb2=".2 .2 .9"/>
    <texture name="sky" type="skybox" builtin="gradient" width="16" height="16" rgb1=".4 .6 .8" rgb2="0 0 0"/>
    <material name="checked" texture="checks" texrepeat="4 4"/>
    <material name="plain" rgba=".3 .7 .3 1"/>
    <mesh name="tetra" vertex="0 0 0  .6 0 0  0 .6 0  0 0 .6"/>
    <hfield name="hills" nrow="8" ncol="8" size="1 1 .4 .1" elevation="{elevation}"/>
  </asset>
  <worldbody>
    <light name="lamp" pos="0 0 3" dir="0 0 -1"/>
    <camera name="watcher" pos="0 -4 1.5" xyaxes="1 0 0 0 .3 1"/>
    <geom type="plane" size="3 3 .1" material="checked"/>
    <geom name="hill" type="hfield" hfield="hills" pos="1.5 1.5 0" contype="0" conaffinity="0"/>
    <body name="box" pos="-.6 0 .6">
      <joint name="turn" axis="0 1 0" damping="1"/>
      <geom name="box" type="box" size=".2 .15 .3" rgba=".8 .8 .1 1"/>
      <site name="mark" pos="0 -.2 .4" size=".08" rgba="1 0 1 1"/>
      {extra}
    </body>
    <body name="mesh" pos=".4 -.2 .3"><geom name="mesh" type="mesh" mesh="tetra" material="plain"/></body>
  </worldbody>
  <actuator><motor joint="turn" ctrlrange="-1 1"/></actuator>
  {sections}
</mujoco>
"""


def _add(field, index, amount):
    def change(model, amount_now):
        getattr(model, field)[index] += amount * amount_now

    return change


def _scale(field, index, amount):
    def change(model, amount_now):
        getattr(model, field)[index] *= 1 + amount * amount_now

    return change


def _texture(model, amount):
    checks = model.tex_data[: 64 * 64 * 3]
    checks[:] = np.roll(checks, 97 + int(1000 * amount))


def _headlight(model, amount):
    model.vis.headlight.ambient[:] += 0.3 * amount


def _view(model, amount):
    model.vis.global_.fovy += 10 * amount


def _material(model, amount):
    model.geom_matid[model.geom("box").id] = model.material("checked").id


CHANGES = {
    "body moved": _add("body_pos", (1, slice(None)), np.array([0.1, 0.05, 0.2])),
    "geom resized": _scale("geom_size", (2, slice(None)), 0.5),
    "geom moved": _add("geom_pos", (1, slice(None)), np.array([-0.6, -0.6, 0.2])),  # others have their body's frame
    "geom recoloured": _add("geom_rgba", (2, slice(0, 3)), np.array([-0.5, -0.3, 0.6])),
    "geom with another material": _material,
    "site moved": _add("site_pos", (0, slice(None)), np.array([0.2, 0.0, 0.1])),
    "light moved": _add("light_pos", (0, slice(None)), np.array([1.0, -1.0, -0.5])),
    "headlight": _headlight,
    "camera moved": _add("cam_pos", (0, slice(None)), np.array([0.3, 0.2, 0.1])),
    "camera zoomed": _scale("cam_fovy", 0, 0.4),
    "free camera zoomed": _view,
    "material recoloured": _add("mat_rgba", (1, slice(0, 3)), np.array([0.5, -0.4, 0.3])),
    "texture": _texture,
    "texture repeated": _scale("mat_texrepeat", (0, slice(None)), 1.0),
    "height field": _scale("hfield_data", slice(None), -0.5),
    "mesh": _scale("mesh_vert", slice(None), 0.5),
}
"""Ways to change a model, each a function of the model and an amount from 0 to 1."""


class ChangingEnv(MujocoEnv, EzPickle):
    """A box on a hinge, in a scene that changes at resets, at every step, or never.

    Args:
        change: A name in `CHANGES`, or None.
        when: "reset" or "step".
        extra: More elements of the box.
        sections: More sections of the model.
        camera: The name of a camera, or None for a free one.
    """

    metadata = {"render_modes": ["human", "rgb_array", "depth_array", "rgbd_tuple"]}  # noqa: RUF012

    def __init__(
        self, change=None, when="reset", *, extra="", sections="", camera=None, size=48, render_mode="rgb_array"
    ):
        kwargs = {"extra": extra, "sections": sections, "camera": camera, "size": size, "render_mode": render_mode}
        EzPickle.__init__(self, change, when, **kwargs)
        self.change, self.when = change, when
        elevation = " ".join(str(0.1 * (i % 7)) for i in range(64))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "scene.xml")
            path.write_text(XML.format(elevation=elevation, extra=extra, sections=sections))
            super().__init__(
                str(path),
                frame_skip=2,
                observation_space=gym.spaces.Box(-np.inf, np.inf, (2,)),
                render_mode=render_mode,
                width=size,
                height=size,
                camera_name=camera,
                default_camera_config={"distance": 4.0, "elevation": -20.0, "azimuth": 100.0},
            )

    def _change(self, when):
        if self.change is not None and self.when == when:
            CHANGES[self.change](self.model, self.np_random.uniform(0.2, 1.0))

    def step(self, action):
        self.do_simulation(action, self.frame_skip)
        self._change("step")
        mujoco.mj_forward(self.model, self.data)
        return self._observe(), 0.0, False, False, {}

    def reset_model(self):
        self._change("reset")
        self.set_state(self.init_qpos + self.np_random.uniform(-0.3, 0.3, 1), self.init_qvel)
        return self._observe()

    def _observe(self):
        return np.concatenate([self.data.qpos, self.data.qvel])


class Containing(gym.Env):
    """Renders a `ChangingEnv` that it contains, as mazes do."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, change=None, size=48):
        self.inner = ChangingEnv(change, size=size)
        self.observation_space, self.action_space = self.inner.observation_space, self.inner.action_space
        self.step, self.render, self.close = self.inner.step, self.inner.render, self.inner.close

    def reset(self, *, seed=None, options=None):
        return self.inner.reset(seed=seed)


def make(change=None, when="reset", *, episode_length=4, **kwargs):
    """The environment with a time limit."""
    return gym.wrappers.TimeLimit(ChangingEnv(change, when, **kwargs), episode_length)
