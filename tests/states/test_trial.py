"""Environments that draw with code of their own: states where the pixels are the same, else their frames."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from changing_env import ChangingEnv, Containing
from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer

from vlmrm_gym.states import States, StateView
from vlmrm_gym.states.watch import data_memory, restored

pytestmark = [pytest.mark.usefixtures("no_collection"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
PUSH = np.array([0.5])
FIXED = [
    *("qpos", "qvel", "qacc_warmstart", "ctrl", "qfrc_applied", "xfrc_applied", "qacc", "xpos", "xquat", "xmat"),
    *("site_xpos", "geom_xpos", "cam_xpos", "subtree_com", "cinert", "cvel", "actuator_force", "qfrc_actuator"),
    *("sensordata", "cacc", "cfrc_int", "cfrc_ext", "qfrc_constraint"),
]
"""What observations and the next step read."""


class Own(ChangingEnv):
    """Draws what Gymnasium does, by a `render` of its own."""

    def render(self):
        return self.mujoco_renderer.render(self.render_mode)


class ShowsGoal(Own):
    """Moves a site to its goal when it renders, as Gymnasium-Robotics does."""

    def reset_model(self):
        self.goal = self.np_random.uniform(-0.5, 0.5, 3)
        return super().reset_model()

    def render(self):
        self.model.site_pos[0] = self.goal
        self.data.site_xpos[0] = self.data.xpos[1] + self.data.xmat[1].reshape(3, 3) @ self.goal
        self.data.qacc_warmstart[:] = 1.0
        return super().render()


class DrawsOver(Own):
    """Draws a bar over the frames of its episodes, from its first one on or a later one."""

    def __init__(self, first=1, **kwargs):
        self.episode, self.first = 0, first
        super().__init__(**kwargs)

    def reset_model(self):
        self.episode += 1
        return super().reset_model()

    def render(self):
        frame = super().render().copy()
        if self.episode >= self.first:
            frame[:4] = 255
        return frame


def captured(env, episodes=3, steps=2, camera=None):
    """States and their changes, and the frame that the environment renders of each."""
    view = StateView(env, camera, "faithful")
    renderer = view.make_renderer(lambda height, width: (height, width))
    pairs, shown = [], []
    for seed in range(episodes):
        env.reset(seed=seed)
        view.reset()
        for _ in range(steps):
            env.step(PUSH)
            pairs.append(view.capture())
            if camera is None:
                shown.append(env.render())
    view.close()
    rows, changes = zip(*pairs, strict=True)
    drawn = States(np.stack(rows), list(changes)).draw(renderer)
    renderer.close()
    return drawn, shown, [change is not None and change.frame is not None for change in changes]


def test_an_environment_whose_pixels_are_the_same_is_drawn_from_states():
    """What it does to its model before it draws, and at resets, included."""
    for env in (ShowsGoal(size=48), Containing("body moved", size=48)):
        drawn, shown, stored = captured(env)
        assert not any(stored)
        np.testing.assert_array_equal(drawn, shown)
        assert not np.array_equal(drawn[1], drawn[3])


def test_the_memory_that_is_put_back_is_that_of_every_array_of_fixed_size():
    """The others, contacts and constraints, are computed by every step."""
    env = gym.make("Humanoid-v5").unwrapped
    env.reset(seed=0)
    before = {name: getattr(env.data, name).copy() for name in FIXED}
    with restored([data_memory(env.data)]):
        for name in FIXED:
            getattr(env.data, name)[...] = 7
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(env.data, name), value)


@pytest.mark.parametrize("make", [ShowsGoal, DrawsOver])
def test_capturing_changes_neither_state_nor_model(make):
    """Contract 9: the next step begins where it would have begun."""
    own, watched = make(size=48), make(size=48)
    view = StateView(watched)
    for env in (own, watched):
        env.reset(seed=0)
    for _ in range(4):
        own.step(PUSH), watched.step(PUSH)
        view.capture()
        for name in ("qpos", "qvel", "qacc_warmstart", "xpos", "site_xpos", "sensordata"):
            np.testing.assert_array_equal(getattr(watched.data, name), getattr(own.data, name))
        np.testing.assert_array_equal(watched.model.site_pos, own.model.site_pos)
        assert watched.np_random.bit_generator.state == own.np_random.bit_generator.state
    view.close()


def test_a_frame_with_more_than_the_state_is_stored():
    """A difference that begins later is found and said: at the second, fourth, eighth ... reset frames are compared."""
    drawn, shown, stored = captured(DrawsOver(size=48))
    assert all(stored)
    np.testing.assert_array_equal(drawn, shown)
    assert (drawn[:, :4] == 255).all()
    with pytest.warns(UserWarning, match="shows more than its MuJoCo state in episode 2: its frames are stored"):
        drawn, shown, stored = captured(DrawsOver(first=2, size=48))
    assert stored == [False] * 2 + [True] * 4
    np.testing.assert_array_equal(drawn, shown)


def test_few_states_are_drawn_both_ways(monkeypatch):
    """Two at first, and one after the second and the fourth reset."""
    draws, draw = [], OffScreenViewer.render
    monkeypatch.setattr(OffScreenViewer, "render", lambda *args, **kwargs: draws.append(0) or draw(*args, **kwargs))
    env = Own(size=48)
    view = StateView(env)
    for seed in range(5):
        env.reset(seed=seed)
        view.reset()
        for _ in range(5):
            env.step(PUSH)
            assert view.capture()[1] is None
    assert len(draws) == 4
    view.close()


def test_a_chosen_camera_is_that_of_the_models():
    drawn, _, stored = captured(Own(size=48), episodes=1, camera="watcher")
    _, shown, _ = captured(Own(size=48, camera="watcher"), episodes=1)
    assert not any(stored)
    np.testing.assert_array_equal(drawn, shown)


def test_without_a_display_the_remedy_is_named():
    """Gymnasium asks for a window system first, and MuJoCo's own error names no remedy."""
    code = "from test_trial import Own, captured; captured(Own(size=48))"
    hidden = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "DISPLAY")}
    environment = {**hidden, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "RuntimeError: <Own instance> cannot render its own frames" in ended.stderr
    assert "MUJOCO_GL=egl or MUJOCO_GL=osmesa before Python starts." in ended.stderr
