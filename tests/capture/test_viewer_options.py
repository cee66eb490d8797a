"""Environments that show more than their state in Gymnasium's viewer: the frame that is scored is the one they show."""

import mujoco
import numpy as np
import pytest
from changing_env import ChangingEnv
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer, OffScreenViewer

import vlmrm_gym
from vlmrm_gym.capture import StateView, is_drawn_from_states
from vlmrm_gym.envs.humanoid_vector import HumanoidVectorEnv
from vlmrm_gym.rendering import States
from vlmrm_gym.rendering.env_viewers import find_cameras
from vlmrm_gym.rendering.stored import FrameStore

pytestmark = [
    pytest.mark.usefixtures("no_collection"),
    pytest.mark.filterwarnings("ignore:The bundled model does not know", "ignore::DeprecationWarning"),
]
NEAR = {"distance": 3.0, "lookat": [0.0, 0.0, 0.5], "elevation": -30.0, "azimuth": 20.0}
SITES = '<site name="far" pos="1 0 .4"/></body><body pos="0 0 0"><geom size=".01"/><site name="fixed" pos="-.6 0 1.2"/>'


def viewer(env):
    return env.mujoco_renderer._get_viewer("rgb_array")


def draw_wireframes(env):
    viewer(env).scn.flags[mujoco.mjtRndFlag.mjRND_WIREFRAME] = True


def draw_without_sky(env):
    viewer(env).scn.flags[mujoco.mjtRndFlag.mjRND_SKYBOX] = False


def show_transparent(env):
    viewer(env).vopt.flags[mujoco.mjtVisFlag.mjVIS_TRANSPARENT] = True


def hide_geoms(env):
    viewer(env).vopt.geomgroup[0] = 0


def hide_sites(env):
    viewer(env).vopt.sitegroup[0] = 0


def show_frames(env):
    viewer(env).vopt.frame = mujoco.mjtFrame.mjFRAME_GEOM


def show_labels(env):
    viewer(env).vopt.label = mujoco.mjtLabel.mjLABEL_BODY


def perturb(env):
    perturbation = viewer(env).pert
    perturbation.select, perturbation.active, perturbation.refpos[:] = 1, mujoco.mjtPertBit.mjPERT_TRANSLATE, (0, 0, 2)
    perturbation.refquat[0] = 1


def add_overlay(env):
    viewer(env).add_overlay(mujoco.mjtGridPos.mjGRID_TOPLEFT, "WWWW", "MMMM")


def show_other_data(env):
    data = mujoco.MjData(env.model)
    data.qpos[:] = env.data.qpos + 1.5
    mujoco.mj_forward(env.model, data)
    viewer(env).data = data


def show_other_model(env):
    other = ChangingEnv("geom recoloured")
    other.reset(seed=1)
    viewer(env).model, viewer(env).data = other.model, other.data


def prepare_other_data(env):
    """Before the environment's first frame."""
    env.mujoco_renderer.data = mujoco.MjData(env.model)
    env.mujoco_renderer.data.qpos[:] = 1.5
    mujoco.mj_forward(env.model, env.mujoco_renderer.data)


def prepare_options(env):
    env.mujoco_renderer._vopt = {mujoco.mjtVisFlag.mjVIS_TRANSPARENT: True}


def replace_a_method(env):
    draw = env.mujoco_renderer.render
    env.mujoco_renderer.render = lambda mode: 255 - draw(mode)


def replace_render(env):
    draw = env.render
    env.render = lambda: 255 - draw()


class Inverted(MujocoRenderer):
    """Draws in its own way."""

    def render(self, render_mode):
        return 255 - super().render(render_mode)


class InvertedViewer(OffScreenViewer):
    """Draws in its own way."""

    def render(self, *args, **kwargs):
        return 255 - super().render(*args, **kwargs)


def replace_the_renderer(env):
    env.mujoco_renderer = Inverted(env.model, env.data, width=48, height=48)


def replace_the_viewer(env):
    env.mujoco_renderer._viewers["rgb_array"] = InvertedViewer(env.model, env.data, 48, 48)


CHANGES = [
    *(draw_wireframes, draw_without_sky, show_transparent, hide_geoms, hide_sites, show_frames, show_labels, perturb),
    *(add_overlay, show_other_data, show_other_model, prepare_other_data, prepare_options, replace_a_method),
    *(replace_render, replace_the_renderer, replace_the_viewer),
]


@pytest.mark.parametrize("change", CHANGES)
def test_frames_are_those_that_the_environment_shows(change):
    """Drawn later, and now: to the pixel, before and after the change, and not those of the state alone."""
    env = ChangingEnv(size=48)
    env.reset(seed=0)
    view = StateView(env, quality="faithful")
    renderer = view.make_renderer(lambda height, width: (height, width))
    captured, now, expected = [], [], []
    for step in range(3):
        env.step(np.array([0.5]))
        if step == 1:
            change(env)
        captured.append(view.capture())
        now.append(view.render())
        if step or not change.__name__.startswith("prepare"):
            expected.append(env.render())
    captured, now = captured[-len(expected) :], now[-len(expected) :]
    states, changes = zip(*captured, strict=True)
    np.testing.assert_array_equal(States(np.stack(states), list(changes)).draw(renderer), expected)
    np.testing.assert_array_equal(now, expected)
    assert not np.array_equal(renderer.render(renderer.capture(env)[None])[0], expected[-1])
    view.close()


CAMERAS = [NEAR, {"type": "tracking", "trackbodyid": "box", "distance": 2.0}, "watcher"]


def rendered_from_cameras(env):
    """What Gymnasium's viewer renders from each of `CAMERAS`."""
    own, frames = viewer(env), []
    for kind in ("FREE", "TRACKING", "FIXED"):
        own.cam.type = getattr(mujoco.mjtCamera, f"mjCAMERA_{kind}")
        if kind == "FREE":
            own.cam.distance, own.cam.elevation, own.cam.azimuth, own.cam.lookat[:] = 3.0, -30.0, 20.0, (0, 0, 0.5)
        elif kind == "TRACKING":
            mujoco.mjv_defaultFreeCamera(env.model, own.cam)
            own.cam.type, own.cam.trackbodyid, own.cam.distance = mujoco.mjtCamera.mjCAMERA_TRACKING, 1, 2.0
        else:
            own.cam.fixedcamid = 0
        frames.append(own.render("rgb_array"))
    return np.concatenate(frames, axis=1)


@pytest.mark.parametrize("change", [draw_wireframes, hide_geoms, perturb, show_other_data, replace_the_viewer])
def test_options_of_the_viewer_count_from_chosen_cameras(change):
    """From a free one, one that follows a body, and one of the model."""
    env = ChangingEnv(size=48)
    env.reset(seed=0)
    view = StateView(env, camera=CAMERAS, quality="faithful")
    env.step(np.array([0.5]))
    change(env)
    shown = view.render()
    np.testing.assert_array_equal(shown, rendered_from_cameras(env))
    view.close()


def test_a_marker_is_seen_from_chosen_cameras():
    env = ChangingEnv(size=48)
    env.reset(seed=0)
    view = StateView(env, camera=CAMERAS, quality="faithful")
    before = view.render().astype(int)
    viewer(env).add_marker(pos=np.array([0.0, 0.0, 0.8]), size=np.full(3, 0.3), rgba=np.ones(4))
    changed = np.abs(view.render() - before).reshape(48, 3, 48, 3).max((0, 2, 3))
    assert (changed > 50).all()
    view.close()


def test_stored_views_follow_a_body():
    """Also of an environment whose frames are stored."""
    env = ChangingEnv(size=48)
    env.reset(seed=0)
    env.step(np.array([0.5]))
    frames = FrameStore(find_cameras(env, CAMERAS)).capture(env)
    np.testing.assert_array_equal(np.concatenate(frames, axis=1), rendered_from_cameras(env))


def test_the_environments_own_camera_stays_where_it_is():
    env = ChangingEnv(size=48)
    env.reset(seed=0)
    view = StateView(env, camera=[NEAR, "watcher"])
    show_transparent(env)
    before = env.render()
    view.capture()
    np.testing.assert_array_equal(env.render(), before)
    view.close()


class OwnCamera(MujocoRenderer):
    """Chooses the camera at every frame."""

    def render(self, render_mode):
        self.viewer.cam.azimuth = 45.0
        return super().render(render_mode)


class OtherPixels(MujocoRenderer):
    """Does not use the viewer."""

    def render(self, render_mode):
        return np.full((48, 48, 3), 180, dtype=np.uint8)


@pytest.mark.parametrize("own", [OwnCamera, OtherPixels])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_chosen_camera_that_the_environment_does_not_use_is_refused(own, when):
    env = ChangingEnv(size=48)
    env.reset(seed=0)
    if when == "before":
        env.mujoco_renderer = own(env.model, env.data, width=48, height=48)
    view = StateView(env, camera=NEAR)
    if when == "after":
        env.mujoco_renderer = own(env.model, env.data, width=48, height=48)
    with pytest.raises(RuntimeError, match=r"`camera`: .* does not render from a chosen camera"):
        view.capture()
    view.close()


def test_frames_of_other_renderers_are_stored():
    env = ChangingEnv(size=48)
    env.mujoco_renderer = Inverted(env.model, env.data, width=48, height=48)
    assert not is_drawn_from_states(env)


def pull_up(model):
    model.opt.gravity[2] *= -1


def lengthen_crank(model):
    model.actuator_cranklength[1] += 0.5


@pytest.mark.parametrize("change", [pull_up, lengthen_crank])
def test_slack_tendons_and_slider_cranks_are_drawn_as_they_are_then(change):
    sections = (
        '<tendon><spatial range="0 2" limited="true" width=".03"><site site="far"/><site site="fixed"/></spatial>'
        '</tendon><actuator><general cranksite="far" slidersite="fixed" cranklength="2"/></actuator>'
    )
    env = ChangingEnv(extra=SITES, sections=sections)
    env.reset(seed=0)
    view = StateView(env, quality="faithful")
    before = env.render()
    np.testing.assert_array_equal(view.render(), before)
    change(env.model)
    assert not np.array_equal(env.render(), before)
    np.testing.assert_array_equal(view.render(), env.render())
    view.close()


def test_a_vector_with_one_viewer_refuses_to_score_what_it_shows():
    """The viewer of `HumanoidVectorEnv` has no data of its environments."""
    envs = vlmrm_gym.VLMRewardVectorEnv(HumanoidVectorEnv(2), reward=lambda frames: frames.mean((1, 2, 3)))
    envs.reset(seed=0)
    show_transparent(envs.unwrapped.single_env)
    with pytest.raises(RuntimeError, match="has one viewer for all of its environments"):
        envs.step(envs.action_space.sample())
    envs.close()
