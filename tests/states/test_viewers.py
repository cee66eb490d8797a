"""Environments that change how Gymnasium's viewer shows them: the frame that is scored is the one that it shows."""

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from changing_env import ChangingEnv, Containing
from changing_viewers import (
    BEFORE_THE_FIRST_FRAME,
    CHANGES,
    EVERY_STEP,
    add_marker,
    draw_wireframes,
    hide_geoms,
    move_camera,
    perturb,
    replace_the_renderer,
    replace_the_viewer,
    show_other_data,
    show_transparent,
    viewer,
)
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer

import vlmrm_gym
from vlmrm_gym.states import States, StateView

pytestmark = [
    pytest.mark.usefixtures("no_collection"),
    pytest.mark.filterwarnings("ignore:The bundled model does not know", "ignore::DeprecationWarning"),
]
NEAR = {"distance": 3.0, "lookat": [0.0, 0.0, 0.5], "elevation": -30.0, "azimuth": 20.0}
CAMERAS = [NEAR, {"type": "tracking", "trackbodyid": "box", "distance": 2.0}, "watcher"]
PUSH = np.array([0.5])


@pytest.fixture
def env():
    env = ChangingEnv(size=48)
    env.reset(seed=0)
    return env


def test_a_marker_is_for_one_frame():
    """An environment that adds one in every step, and is rendered by nobody else, shows one at a time."""
    env, single = ChangingEnv(size=48), ChangingEnv(size=48)
    view = StateView(env, quality="faithful")
    env.reset(seed=0), single.reset(seed=0)
    for step in range(3):
        for one in (env, single):
            one.step(PUSH)
            add_marker(one, step)
        frame = view.capture()[1].frame
        single.mujoco_renderer.viewer.make_context_current()
        np.testing.assert_array_equal(frame, single.render())
    view.close()


@pytest.mark.parametrize("quarter", range(4))
def test_frames_are_those_that_the_environment_shows(quarter):
    """Drawn later, and now: to the pixel, before and after a change, and not those of the state alone."""
    # All are kept: a viewer's end would free objects of others.
    envs = {change: ChangingEnv(size=48) for change in list(CHANGES)[quarter::4]}
    for change, env in envs.items():
        env.reset(seed=0)
        view = StateView(env, quality="faithful")
        same_size = lambda height, width: (height, width)  # noqa: E731
        renderer = view.make_renderer(same_size) if change in EVERY_STEP else view._renderer
        captured, now, expected = [], [], []
        for step in range(3):
            env.step(PUSH)
            if step == 1 or (step == 2 and change in EVERY_STEP):
                CHANGES[change](env, step)
            captured.append(view.capture())
            now.append(view.render())
            if step or change not in BEFORE_THE_FIRST_FRAME:
                expected.append(render_in_own_context(env))
        captured, now = captured[-len(expected) :], now[-len(expected) :]
        states, changes = zip(*captured, strict=True)
        drawn = States(np.stack(states), list(changes)).draw(renderer)
        np.testing.assert_array_equal(drawn, expected, err_msg=change)
        np.testing.assert_array_equal(now, expected, err_msg=change)
        assert not np.array_equal(renderer.render(renderer.capture(env)[None])[0], expected[-1]), change
        renderer.close(), view.close()


def render_in_own_context(env):
    """Gymnasium's viewers draw in whichever OpenGL context is current."""
    if env.mujoco_renderer.viewer is not None:
        env.mujoco_renderer.viewer.make_context_current()
    return env.render()


def test_a_frame_of_another_size_is_the_environments_with_areas_averaged(env):
    renderer = StateView(env, quality="faithful")
    renderer.make_renderer(lambda height, width: (24, 24))
    show_transparent(env, 0)
    frame = renderer.capture()[1].frame
    expected = env.render().reshape(24, 2, 24, 2, 3).mean((1, 3))
    np.testing.assert_allclose(frame, expected, atol=1)
    renderer.close()


def test_a_configuration_of_the_camera_counts_until_the_viewer_is_made(env):
    """Then Gymnasium keeps the camera."""
    view, frames = StateView(env, quality="faithful"), []
    for elevation in (-29.0, -38.0, -47.0):
        env.step(PUSH)
        env.mujoco_renderer.default_cam_config = {**env.mujoco_renderer.default_cam_config, "elevation": elevation}
        frames.append((view.render(), env.render() if frames else None))
    assert not np.array_equal(frames[0][0], frames[1][0])
    for ours, shown in frames[1:]:
        np.testing.assert_array_equal(ours, shown)
    view.close()


def rendered_from_cameras(env):
    """What Gymnasium's viewer renders from each of `CAMERAS`."""
    own, frames = viewer(env), []
    own.make_context_current()
    for kind, fields in (
        ("FREE", {"distance": 3.0, "elevation": -30.0, "azimuth": 20.0, "lookat": (0, 0, 0.5)}),
        ("TRACKING", {"trackbodyid": 1, "distance": 2.0}),
        ("FIXED", {"fixedcamid": 0}),
    ):
        mujoco.mjv_defaultFreeCamera(env.model, own.cam)
        for name, value in {"type": getattr(mujoco.mjtCamera, f"mjCAMERA_{kind}"), **fields}.items():
            setattr(own.cam, name, value)
        frames.append(own.render("rgb_array"))
    return np.concatenate(frames, axis=1)


def test_options_of_the_viewer_count_from_chosen_cameras():
    """From a free one, one that follows a body, and one of the model."""
    envs = []  # kept: a viewer's end would free objects of others
    for change in (draw_wireframes, hide_geoms, perturb, show_other_data, replace_the_viewer):
        env = ChangingEnv(size=48)
        envs.append(env)
        env.reset(seed=0)
        view = StateView(env, camera=CAMERAS, quality="faithful")
        env.step(PUSH)
        change(env, 0)
        np.testing.assert_array_equal(view.render(), rendered_from_cameras(env), err_msg=change.__name__)
        view.close()


class Redrawn(gym.Wrapper):
    """May draw over what is rendered, so its frames are stored."""

    def render(self):
        return self.env.render()


def test_views_from_chosen_cameras_are_stored_with_markers_and_follow_a_body(env):
    env.step(PUSH)
    view = StateView(Redrawn(env), camera=CAMERAS)
    np.testing.assert_array_equal(view.render(), rendered_from_cameras(env))
    view.close()
    for one in (env, Redrawn(env)):
        view = StateView(one, camera=CAMERAS, quality="faithful")
        before = view.render().astype(int)
        viewer(env).add_marker(pos=np.array([0.0, 0.0, 0.8]), size=np.full(3, 0.3), rgba=np.ones(4))
        assert (np.abs(view.render() - before).reshape(48, 3, 48, 3).max((0, 2, 3)) > 50).all()
        viewer(env)._markers.clear()
        view.close()


def test_the_environments_own_camera_stays_where_it_is_and_so_does_a_chosen_one(env):
    view = StateView(env, camera=[NEAR, "watcher"])
    move_camera(env, 1)
    assert view.capture()[1] is None
    show_transparent(env, 1)
    before = env.render()
    view.capture()
    np.testing.assert_array_equal(env.render(), before)
    view.close()


class OwnCamera(MujocoRenderer):
    """Chooses the camera at every frame."""

    def render(self, render_mode):
        self._get_viewer(render_mode).cam.azimuth = 45.0
        return super().render(render_mode)


class OtherPixels(MujocoRenderer):
    """Does not use the viewer."""

    def render(self, render_mode):
        return np.full((48, 48, 3), 180, dtype=np.uint8)


def test_a_chosen_camera_that_the_environment_does_not_use_is_refused(env):
    """Replaced after the view is made, or before. The environment's own frames are stored."""
    for own in (OwnCamera, OtherPixels):
        view = StateView(env, camera=NEAR)
        replace_the_renderer(env, 0, own)
        for refusing in (view, *([StateView(env, camera=NEAR)] if own is OtherPixels else [])):
            with pytest.raises(RuntimeError, match=r"`camera`: .* does not render from a chosen camera"):
                refusing.capture()
            refusing.close()
        view = StateView(env, quality="faithful")
        np.testing.assert_array_equal(view.capture()[1].frame, env.render())
        view.close()


def test_an_environment_that_chooses_its_camera_when_it_renders_is_drawn_from_a_chosen_one(env):
    replace_the_renderer(env, 0, OwnCamera)
    view = StateView(env, NEAR, "faithful")
    for _ in range(2):
        env.step(PUSH)
        assert view.capture()[1] is None
    view.close()


def test_slack_tendons_and_slider_cranks_are_drawn_as_they_are_then():
    sites = '<site name="far" pos="1 0 .4"/></body>'
    sites += '<body pos="0 0 0"><geom size=".01"/><site name="fixed" pos="-.6 0 1.2"/>'
    sections = (
        '<tendon><spatial range="0 2" limited="true" width=".03"><site site="far"/><site site="fixed"/></spatial>'
        '</tendon><actuator><general cranksite="far" slidersite="fixed" cranklength="2"/></actuator>'
    )
    env = ChangingEnv(extra=sites, sections=sections)
    env.reset(seed=0)
    view = StateView(env, quality="faithful")
    np.testing.assert_array_equal(view.render(), env.render())
    for array, index, value in ((env.model.opt.gravity, 2, 9.81), (env.model.actuator_cranklength, 1, 2.5)):
        before = env.render()
        array[index] = value
        assert not np.array_equal(env.render(), before)
        np.testing.assert_array_equal(view.render(), env.render())
    view.close()


def test_a_vector_with_one_viewer_refuses_to_score_what_it_shows():
    """The viewer of `HumanoidVectorEnv` has no data of its environments."""
    pytest.importorskip("mujoco", minversion="4.0")  # its `mujoco.batch`
    from vlmrm_gym.tasks.humanoid_vector import HumanoidVectorEnv

    envs = vlmrm_gym.VLMRewardVectorEnv(HumanoidVectorEnv(2), reward=brightness)
    envs.reset(seed=0)
    show_transparent(envs.unwrapped.single_env, 0)
    with pytest.raises(RuntimeError, match="has one viewer for all of its environments"):
        envs.step(envs.action_space.sample())
    envs.close()


def brightness(frames):
    return frames.mean((1, 2, 3))


@pytest.fixture
def containing():
    env = vlmrm_gym.VLMReward(Redrawn(Containing()), reward=brightness)
    env.reset(seed=0)
    yield env
    env.close()


def test_other_viewers_that_are_made_and_closed_in_between_change_no_stored_frame(containing):
    """And keep their own context."""
    rewards, others = [], [ChangingEnv(size=48)]
    for interrupt in (False, True):
        containing.reset(seed=0)
        others[-1].reset(seed=0)
        for step in range(4):
            before = others[-1].render()
            rewards.append(containing.step(PUSH)[1])
            np.testing.assert_array_equal(others[-1].render(), before)
            if interrupt and step == 1:
                others[-1].close()
                # The closed one is kept: its destructor would free objects of others.
                others.append(ChangingEnv(size=48))
                others[-1].reset(seed=0)
    assert min(rewards) > 20
    assert containing.render().mean() > 20
    np.testing.assert_array_equal(rewards[:4], rewards[4:])
    others[-1].close()


def test_a_black_scene_is_scored_and_a_viewer_that_can_no_longer_draw_is_an_error(containing):
    """Not a reward for a black frame."""
    assert containing.step(PUSH)[1] > 20
    viewer = containing.unwrapped.inner.mujoco_renderer.viewer
    viewer.scn.flags[mujoco.mjtRndFlag.mjRND_SKYBOX] = False
    viewer.vopt.geomgroup[:] = 0
    viewer.vopt.sitegroup[:] = 0
    assert containing.step(PUSH)[1] == 0
    containing.unwrapped.inner.close()
    with pytest.raises(RuntimeError, match="is black because its MuJoCo viewer can no longer draw"):
        containing.step(PUSH)
