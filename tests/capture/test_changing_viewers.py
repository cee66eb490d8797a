"""Environments that change how Gymnasium's viewer shows them: the frame that is scored is the one that it shows."""

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from changing_env import ChangingEnv

import vlmrm_gym
from vlmrm_gym.capture import StateView
from vlmrm_gym.rendering import States
from vlmrm_gym.rendering.env_viewers import find_cameras
from vlmrm_gym.rendering.stored import FrameStore

pytestmark = pytest.mark.filterwarnings("ignore:The bundled model does not know", "ignore::DeprecationWarning")


def move_camera(env, step):
    env.mujoco_renderer._get_viewer("rgb_array").cam.azimuth = 100.0 + 20.0 * step


def configure_camera(env, step):
    env.mujoco_renderer.default_cam_config = {**env.mujoco_renderer.default_cam_config, "elevation": -20.0 - 9 * step}


def choose_camera(env, step):
    env.mujoco_renderer.camera_id = -1 if step % 2 else 0


def add_marker(env, step):
    env.mujoco_renderer._get_viewer("rgb_array").add_marker(
        pos=np.array([0.2 * step, 0.0, 1.0]),
        size=np.full(3, 0.2),
        rgba=np.array([1, 0, 1, 1], dtype=np.float32),
        type=mujoco.mjtGeom.mjGEOM_SPHERE,
    )


class ChangingViewer(gym.Wrapper):
    """Changes the viewer after every step."""

    def __init__(self, env, change):
        super().__init__(env)
        self.change, self.steps = change, 0

    def step(self, action):
        result = super().step(action)
        self.steps += 1
        self.change(self.env.unwrapped, self.steps)
        return result


def make(change):
    env = ChangingViewer(ChangingEnv(size=48), change)
    env.reset(seed=0)
    return env


@pytest.mark.parametrize("change", [move_camera, choose_camera, add_marker])
def test_frames_are_those_of_the_viewer_at_that_time(change):
    """To the pixel, drawn later, and as the environment renders it now."""
    env = make(change)
    view = StateView(env, quality="faithful")
    renderer = view.make_renderer(lambda height, width: (height, width))
    captured, now, expected = [], [], []
    for _ in range(3):
        env.step(np.array([0.5]))
        captured.append(view.capture())
        now.append(view.render())
        expected.append(env.render())
    assert not np.array_equal(expected[0], expected[1])
    states, changes = zip(*captured, strict=True)
    np.testing.assert_array_equal(States(np.stack(states), list(changes)).draw(renderer), expected)
    np.testing.assert_array_equal(now, expected)
    view.close()


def test_a_configuration_counts_until_the_viewer_is_made():
    """Then Gymnasium keeps the camera."""
    env = make(configure_camera)
    view = StateView(env, quality="faithful")
    env.step(np.array([0.0]))
    first = view.render()
    env.step(np.array([0.0]))
    frames = [view.render(), env.render()]
    env.step(np.array([0.0]))
    frames += [view.render(), env.render()]
    assert not np.array_equal(first, frames[0])
    np.testing.assert_array_equal(frames[0], frames[1])
    np.testing.assert_array_equal(frames[2], frames[3])
    view.close()


def test_stored_frames_have_the_markers_in_every_view():
    env = make(add_marker)
    near = {"distance": 4.0, "lookat": [0.0, 0.0, 0.0], "elevation": -40.0, "azimuth": 0.0}
    store = FrameStore(find_cameras(env, [near, {**near, "azimuth": 90.0}]))
    captured = [store.capture(env)]
    env.step(np.array([0.0]))  # adds a magenta sphere
    captured.append(store.capture(env))
    red, green, blue = np.moveaxis(np.stack(captured).astype(int), -1, 0)
    before, after = ((red > 100) & (blue > 100) & (green < 60)).sum((2, 3))
    assert (after > before + 10).all()


@pytest.mark.parametrize("change", [move_camera, add_marker])
def test_a_model_with_other_bodies_is_seen_by_the_viewer_too(change):
    env = make(change)
    view = StateView(env, quality="faithful")
    other = ChangingEnv(extra='<geom type="sphere" size=".3" pos="0 0 .5" rgba="0 1 1 1"/>')
    env.unwrapped.model, env.unwrapped.data = other.model, other.data
    env.unwrapped.mujoco_renderer.model, env.unwrapped.mujoco_renderer.data = other.model, other.data
    env.step(np.array([0.5]))
    np.testing.assert_array_equal(view.render(), env.render())
    view.close()


def test_a_marker_is_for_one_frame():
    """An environment that adds one in every step, and is rendered by nobody else, shows one at a time."""
    env, single = ChangingEnv(size=48), ChangingEnv(size=48)
    view = StateView(env, quality="faithful")
    env.reset(seed=0), single.reset(seed=0)
    for step in range(3):
        env.step(np.array([0.5])), single.step(np.array([0.5]))
        for one in (env, single):
            add_marker(one, step)
        frame = view.capture()[1].frame
        single.mujoco_renderer.viewer.make_context_current()
        np.testing.assert_array_equal(frame, single.render())
    view.close()


def test_a_chosen_camera_stays_where_it_is():
    """The viewer's camera is that of the environment's own view."""
    env = make(move_camera)
    view = StateView(env, camera={"azimuth": 30.0, "distance": 4.0})
    env.step(np.array([0.5]))
    assert view.capture()[1] is None
    view.close()


@pytest.mark.parametrize("change", [move_camera, add_marker])
def test_rewards_of_episodes_are_those_of_single_steps(change):
    makers = [lambda: gym.wrappers.TimeLimit(make(change), 3)] * 2
    one, many = vlmrm_gym.VLMReward(makers[0](), "a box"), vlmrm_gym.VLMRewardVectorEnv(makers, "a box")
    one.reset(seed=0)
    many.reset(seed=[0, 0])
    rewards = [one.step(np.array([0.5]))[1] for _ in range(3)]
    for _ in range(3):
        *_, infos = many.step(np.full((2, 1), 0.5))
    for scored in infos["vlm_rewards"]:
        np.testing.assert_allclose(scored, rewards, atol=1e-5)
    assert np.ptp(rewards) > 1e-3
    one.close()
    many.close()
