"""Ways to change how Gymnasium's viewer shows a `ChangingEnv`, each a function of the environment and a step."""

import mujoco
import numpy as np
from changing_env import ChangingEnv
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer, OffScreenViewer


def viewer(env):
    return env.unwrapped.mujoco_renderer._get_viewer("rgb_array")


def move_camera(env, step):
    viewer(env).cam.azimuth = 100.0 + 20.0 * step


def choose_camera(env, step):
    env.mujoco_renderer.camera_id = -1 if step % 2 else 0


def add_marker(env, step):
    viewer(env).add_marker(pos=np.array([0.2 * step, 0, 1]), size=np.full(3, 0.2), rgba=np.array([1, 0, 1, 1]))


def show_transparent(env, step):
    viewer(env).vopt.flags[mujoco.mjtVisFlag.mjVIS_TRANSPARENT] = True


def draw_wireframes(env, step):
    viewer(env).scn.flags[mujoco.mjtRndFlag.mjRND_WIREFRAME] = True


def hide_geoms(env, step):
    viewer(env).vopt.geomgroup[0] = 0


def perturb(env, step):
    perturbation = viewer(env).pert
    perturbation.select, perturbation.active, perturbation.refpos[:] = 1, mujoco.mjtPertBit.mjPERT_TRANSLATE, (0, 0, 2)
    perturbation.refquat[0] = 1


def other_data(env):
    data = mujoco.MjData(env.model)
    data.qpos[:] = 1.5
    mujoco.mj_forward(env.model, data)
    return data


def show_other_data(env, step):
    viewer(env).data = other_data(env)


def show_other_model(env, step):
    other = ChangingEnv("geom recoloured")
    other.reset(seed=1)
    viewer(env).model, viewer(env).data = other.model, other.data


def replace_the_model(env, step):
    """By one with other bodies, which cannot be drawn as a change of the renderer's."""
    other = ChangingEnv(extra='<geom type="sphere" size=".3" pos="0 0 .5" rgba="0 1 1 1"/>')
    env.model, env.data = env.mujoco_renderer.model, env.mujoco_renderer.data = other.model, other.data
    mujoco.mj_forward(env.model, env.data)


def invert(owner):
    draw = owner.render
    owner.render = lambda *args: 255 - draw(*args)


class Inverted(MujocoRenderer):
    """Draws in its own way."""

    def render(self, render_mode):
        return 255 - super().render(render_mode)


class InvertedViewer(OffScreenViewer):
    """Draws in its own way."""

    def render(self, *args, **kwargs):
        return 255 - super().render(*args, **kwargs)


def replace_the_renderer(env, step, renderer=Inverted):
    env.mujoco_renderer = renderer(env.model, env.data, width=48, height=48)


def replace_the_viewer(env, step):
    viewer = InvertedViewer(env.model, env.data, 48, 48)
    viewer.replaced = env.mujoco_renderer._viewers.get("rgb_array")  # collected, it would free the new one's objects
    env.mujoco_renderer._viewers["rgb_array"] = viewer


EVERY_STEP = {"marker": add_marker, "camera moved": move_camera, "camera chosen": choose_camera}
BEFORE_THE_FIRST_FRAME = {
    "other data, prepared": lambda env, step: setattr(env.mujoco_renderer, "data", other_data(env)),
    "options, prepared": lambda env, step: setattr(
        env.mujoco_renderer, "_vopt", {mujoco.mjtVisFlag.mjVIS_TRANSPARENT: True}
    ),
    "other model": replace_the_model,
}
CHANGES = {
    **EVERY_STEP,
    **BEFORE_THE_FIRST_FRAME,
    "wireframes": draw_wireframes,
    "transparent": show_transparent,
    "no geoms": hide_geoms,
    "frames": lambda env, step: setattr(viewer(env).vopt, "frame", mujoco.mjtFrame.mjFRAME_GEOM),
    "labels": lambda env, step: setattr(viewer(env).vopt, "label", mujoco.mjtLabel.mjLABEL_BODY),
    "perturbation": perturb,
    "overlay": lambda env, step: viewer(env).add_overlay(mujoco.mjtGridPos.mjGRID_TOPLEFT, "WWWW", "MMMM"),
    "other data in the viewer": show_other_data,
    "other model in the viewer": show_other_model,
    "method": lambda env, step: invert(env.mujoco_renderer),
    "render": lambda env, step: invert(env),
    "renderer": replace_the_renderer,
    "viewer": replace_the_viewer,
}
