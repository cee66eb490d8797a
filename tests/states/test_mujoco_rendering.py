"""MuJoCo scenes rendered from states."""

import pickle
import sys

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled

from vlmrm_gym.states import States, StateView, opengl
from vlmrm_gym.states.cameras import make_camera
from vlmrm_gym.states.drawing import Drawings
from vlmrm_gym.states.env_viewers import find_camera
from vlmrm_gym.states.mujoco import MuJoCoRenderer

ENVS = [("HalfCheetah", False), ("HalfCheetah", True), ("Ant", True), ("Humanoid", False), ("Reacher", False)]
ALL_THINGS = """
<mujoco>
  <worldbody>
    <light pos="0 0 3" mode="targetbody" target="ball"/>
    <camera name="watcher" pos="1 -2 1" mode="targetbody" target="ball"/>
    <camera pos="0 -3 1" xyaxes="1 0 0 0 0 1"/>
    <geom type="plane" size="3 3 .1" rgba=".6 .7 .6 1"/>
    <body name="mover" mocap="true" pos=".3 0 .5"><geom type="box" size=".1 .1 .1" rgba="1 0 0 1"/></body>
    <body name="ball" pos="0 0 .8">
      <freejoint/><geom size=".15" rgba="0 0 1 1"/><site name="top" pos="0 0 .15"/>
    </body>
    <site name="hook" pos="0 0 1.5"/>
  </worldbody>
  <tendon><spatial name="rope" width=".02" rgba="0 1 0 1"><site site="hook"/><site site="top"/></spatial></tendon>
  <actuator><muscle tendon="rope" ctrllimited="true" ctrlrange="0 1" lengthrange="0.1 2"/></actuator>
</mujoco>
"""
"""Mocap body, tendon, muscle, and a light and a camera that follow a body."""


def reference(renderer, model, data, camera):
    """What MuJoCo's own renderer shows after `mj_forward`."""
    mujoco.mj_forward(model, data)
    if camera.type == mujoco.mjtCamera.mjCAMERA_TRACKING:
        camera.lookat[:] = data.subtree_com[camera.trackbodyid]  # MuJoCo before 3.3.7 gets there over many frames
    renderer.update_scene(data, camera)
    return renderer.render()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "rendered_before"), ENVS)
def test_scored_frames_are_the_environments_own(name, rendered_before, rng):
    """To the pixel, in any order, whether Gymnasium has chosen what its camera looks at before or chooses it later."""
    env = gym.make(f"{name}-v5", render_mode="rgb_array", width=80, height=48)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(3):
        env.step(env.action_space.sample())
    if rendered_before:
        env.render()
    scene = StateView(env, quality="faithful")
    states, frames = [], []
    for _ in range(3):
        env.step(env.action_space.sample())
        mujoco.mj_forward(env.unwrapped.model, env.unwrapped.data)  # a step leaves positions one substep behind
        states.append(scene.capture()[0])
        frames.append(env.render())
    order = rng.permutation(3)
    np.testing.assert_array_equal(scene.draw(np.stack(states)[order]), np.stack(frames)[order])
    np.testing.assert_array_equal(scene.render(), frames[-1])
    assert not np.array_equal(frames[0], frames[-1])
    scene.close()
    env.close()


def test_the_view_of_a_new_environment_does_not_depend_on_its_state():
    """Gymnasium's own cheetah is looked at from where its first rendered state happens to be."""
    envs = [gym.make("HalfCheetah-v5", render_mode="rgb_array") for _ in range(2)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    np.testing.assert_array_equal(*(find_camera(env.unwrapped).lookat for env in envs))


def test_a_state_contains_everything_that_affects_the_frame(rng):
    """Mocap bodies, tendons, muscles, lights and cameras that follow: under fixed, tracking and free cameras."""
    tracking = {"type": "tracking", "trackbodyid": "ball", "distance": 2.0, "elevation": -20}
    cameras = ["watcher", 1, tracking, {"distance": 3.0, "lookat": (0, 0, 0.5), "azimuth": 30}]
    model = mujoco.MjModel.from_xml_string(ALL_THINGS)
    renderer, mujocos = (
        MuJoCoRenderer(model, 60, 90, camera=cameras, quality="faithful"),
        mujoco.Renderer(model, 60, 90),
    )
    assert renderer.state_size == model.nq + 7 + model.na
    env = type("Env", (), {})()
    env.unwrapped = env
    states, expected = [], []
    for _ in range(3):
        env.data = data = mujoco.MjData(model)
        data.qpos[:3] = rng.uniform(-0.5, 0.5, 3) + np.array([0, 0, 0.8])
        data.mocap_pos[0] = rng.uniform(-0.5, 0.5, 3) + np.array([0, 0, 0.6])
        data.mocap_quat[0] = np.array([1, 0.5, 0, 0]) / np.sqrt(1.25)
        data.act[:] = rng.uniform(0, 1)
        states.append(renderer.capture(env))
        expected.append([reference(mujocos, model, data, make_camera(model, camera)) for camera in cameras])
    np.testing.assert_array_equal(renderer.render(states[::-1]), expected[::-1])
    renderer.close(), mujocos.close()


def test_a_renderer_renders_the_same_in_another_process_and_after_close_and_fast_differs_a_little():
    env = gym.make("Humanoid-v5")
    env.reset(seed=0)
    renderer, faithful = (MuJoCoRenderer(env.unwrapped.model, 96, 96, quality=name) for name in ("fast", "faithful"))
    states = renderer.capture(env)[None]
    frames = renderer.render(states)
    assert 0 < np.abs(frames - faithful.render(states).astype(float)).mean() < 20
    renderer.close()
    np.testing.assert_array_equal(renderer.render(states), frames)
    renderer.close()
    again = pickle.loads(pickle.dumps(renderer))
    np.testing.assert_array_equal(again.render(states), frames)
    for one in (again, faithful):
        one.close()


def test_any_size_and_the_callers_model_is_not_changed():
    model = mujoco.MjModel.from_xml_string(ALL_THINGS)
    settings = model.vis.quality.offsamples, model.vis.global_.offwidth
    for height, width in ((1, 1), (17, 33), (1024, 8)):
        renderer = MuJoCoRenderer(model, height, width)
        frames = renderer.render(np.zeros((2, 15)))
        assert (frames.shape, frames.dtype) == ((2, height, width, 3), np.uint8)
        assert frames.flags.c_contiguous
        assert renderer.render(np.zeros((0, 15))).shape == (0, height, width, 3)
        renderer.close()
    assert (model.vis.quality.offsamples, model.vis.global_.offwidth) == settings
    for shape, value, error in (
        ((2, 5), 0, r"have the shape \(B, 15\)\. Received \(2, 5\)"),
        (15, 0, r"have the shape \(B, 15\)\. Received \(15,\)"),
        ((1, 15), np.nan, "be finite"),
    ):
        with pytest.raises(ValueError, match=f"`states` must {error}"):
            renderer.render(np.full(shape, value))


def test_bad_cameras():
    model = mujoco.MjModel.from_xml_string(ALL_THINGS)
    for camera, error in (
        ("front", r"no camera 'front'\. Valid: 0 \('watcher'\), 1"),
        ({"zoom": 2}, "no field 'zoom'. Valid fields: type, fixedcamid, trackbodyid, lookat, distance"),
        ({"trackbodyid": "torso"}, r"no body 'torso'\. Valid: 0 \('world'\), 1 \('mover'\), 2 \('ball'\)"),
        ({"type": "flying"}, "`camera.type` must be one of free, tracking, fixed. Received 'flying'"),
        ({"type": "fixed"}, "no camera None"),
        (
            {"distance": 1e-300},
            "`camera.distance` must be from .* metres.*, else the picture would be empty. Received 1e-300",
        ),
        ({"distance": "3"}, "`camera.distance` must be a finite number. Received '3'"),
        ({"distance": 10**400}, "`camera.distance` must be a finite number. Received an integer of 1329 bits"),
        (
            {"lookat": [0, 0, 1e20]},
            r"`camera.lookat` must be within .*, else the picture would be empty. Received \[0.0, 0.0, 1e\+20\]",
        ),
        ({"lookat": [0, 0]}, r"`camera.lookat` must be three numbers. Received \[0, 0\]"),
        ({"orthographic": 1}, "`camera.orthographic` must be True or False. Received 1"),
        (True, "`camera` must be a mapping .*Received True"),
    ):
        with pytest.raises(ValueError, match=error):
            make_camera(model, camera)


def test_a_camera_that_does_not_exist_is_refused_every_time():
    """The second time, frames came from the renderer's own camera."""
    drawings = Drawings(MuJoCoRenderer(mujoco.MjModel.from_xml_string(ALL_THINGS), 8, 8))
    for _ in range(2):
        with pytest.raises(ValueError, match="no camera 'nowhere'"):
            drawings.draw(States(np.zeros((1, 15))), camera="nowhere")


def test_a_tracked_body_with_a_lookat_is_a_free_camera_as_in_the_published_code():
    model = mujoco.MjModel.from_xml_string(ALL_THINGS)
    published = {"trackbodyid": 1, "distance": 3.5, "lookat": [0.0, 0.0, 1.0], "elevation": -10.0, "azimuth": 180.0}
    assert make_camera(model, published).type == mujoco.mjtCamera.mjCAMERA_FREE
    assert make_camera(model, {"trackbodyid": 1}).type == mujoco.mjtCamera.mjCAMERA_TRACKING
    assert make_camera(model, {"fixedcamid": 0}).type == mujoco.mjtCamera.mjCAMERA_FIXED
    assert make_camera(model, {"type": mujoco.mjtCamera.mjCAMERA_FREE}).type == mujoco.mjtCamera.mjCAMERA_FREE
    assert make_camera(model, np.int64(1)).fixedcamid == 1
    assert make_camera(model, {"distance": np.float32(3), "lookat": np.zeros(3)}).lookat.tolist() == [0, 0, 0]


def test_a_library_that_cannot_be_loaded_names_the_package(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setitem(sys.modules, "mujoco.egl", None)
    with pytest.raises(DependencyNotInstalled, match="apt-get install libegl1"):
        opengl.make_context(8, 8)
