"""Which environments are drawn from their states, and what becomes of the others."""

import gymnasium as gym
import numpy as np
import pytest

from vlmrm_gym.states import is_drawn_from_states, make_renderer
from vlmrm_gym.states.drawing import FrameStore, resize
from vlmrm_gym.tasks.cartpole import CartPole
from vlmrm_gym.tasks.mountain_car import MountainCar


def made(env_id, **kwargs):
    return gym.make(env_id, render_mode="rgb_array", **kwargs)


@pytest.mark.filterwarnings("ignore:.*out of date")
def test_which_environments_are_drawn_from_states_and_the_frames_of_others_are_stored():
    for env_id in ("CartPole-v0", "MountainCarContinuous-v0", "Hopper-v5"):
        env = made(env_id)
        assert is_drawn_from_states(env)
        env.reset(seed=0)
        renderer = make_renderer(env).at_size(lambda height, width: (height // 4, width // 4))
        shape = env.render().shape
        assert renderer.render(renderer.capture(env)[None]).shape == (1, shape[0] // 4, shape[1] // 4, 3)
        assert renderer.state_size < 20
    for env_id in ("FrozenLake-v1", "MountainCar-v0"):
        env = made(env_id)
        env.reset(seed=0)
        assert not is_drawn_from_states(env)
        renderer = make_renderer(env)
        states = renderer.capture(env)[None]
        assert states.dtype == np.uint8
        np.testing.assert_array_equal(renderer.render(states)[0], env.render())


def test_what_a_wrapper_or_a_subclass_changes_is_not_drawn_over_and_one_view_takes_no_camera():
    class LongPole(CartPole):
        def __init__(self):
            super().__init__(render_mode="rgb_array")
            self.length = 1.0

    class OtherCar(MountainCar):
        def render(self):
            return np.zeros((4, 4, 3), dtype=np.uint8)

    class Redrawn(gym.Wrapper):
        def render(self):
            return 255 - self.env.render()

    assert not is_drawn_from_states(Redrawn(made("CartPole-v1")))
    assert not is_drawn_from_states(Redrawn(made("Hopper-v5")))
    assert not is_drawn_from_states(LongPole())
    assert not is_drawn_from_states(OtherCar(render_mode="rgb_array"))
    assert is_drawn_from_states(gym.wrappers.TimeLimit(made("CartPole-v1"), 10))
    for env_id, camera in (("FrozenLake-v1", "front-side"), ("CartPole-v1", {"azimuth": 0})):
        with pytest.raises(ValueError, match=r"`camera` is for MuJoCo environments\. .* has one view"):
            make_renderer(made(env_id), camera=camera)


def test_stored_frames_are_rgb_and_resized():
    """Smaller: each pixel the mean of its area. Larger: interpolated, as models resize pictures."""

    class Gray(gym.Env):
        def render(self):
            return np.zeros((5, 6), dtype=np.uint8)

    with pytest.raises(ValueError, match=r"must return uint8 \(H, W, 3\)\. Received uint8 \(5, 6\)"):
        FrameStore().capture(Gray())
    frame = np.array([[0, 50, 200, 250]] * 4, dtype=np.uint8)[..., None].repeat(3, axis=2)
    np.testing.assert_array_equal(resize(frame, (2, 2))[..., 0], [[25, 225], [25, 225]])
    larger = resize(frame, (8, 8))[0, :, 0]
    assert (np.diff(larger.astype(int)) >= 0).all()
    assert len(set(larger.tolist())) > 4
