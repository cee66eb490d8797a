"""The renderers of cart-pole and mountain car."""

import pickle
from itertools import product

import gymnasium as gym
import numpy as np
import pygame
import pytest

from vlmrm_gym.states.classic_control import CartPoleRenderer, MountainCarRenderer
from vlmrm_gym.tasks.cartpole import CartPole

KINDS = {
    "cart-pole": CartPoleRenderer,
    "mountain car": lambda height, width: MountainCarRenderer(height, width, textured=False),
    "textured mountain car": lambda height, width: MountainCarRenderer(height, width, textured=True),
}


@pytest.fixture(params=KINDS)
def make(request):
    return KINDS[request.param]


def some_states(renderer, count):
    rng = np.random.default_rng(0)
    if renderer.state_size == 2:
        return rng.uniform((-2.4, -np.pi), (2.4, np.pi), (count, 2))
    return rng.uniform(-1.2, 0.6, (count, 1))


def average_areas(frame, height, width):
    """A frame resized by definition: each new pixel is the mean of the area it covers."""

    def weights(old, new):
        edges = np.arange(new + 1) * (old / new)
        left, right = edges[:-1, None], edges[1:, None]
        covered = np.minimum(right, np.arange(old) + 1) - np.maximum(left, np.arange(old))
        return np.clip(covered, 0, None) * (new / old)

    rows, columns = weights(frame.shape[0], height), weights(frame.shape[1], width)
    return np.stack([rows @ frame[..., channel] @ columns.T for channel in range(3)], axis=2)


def check_frame(env, renderer):
    """The frame is Gymnasium's; the captured state is a copy in float64."""
    state = renderer.capture(env)
    assert (state.shape, state.dtype) == ((renderer.state_size,), np.float64)
    assert not np.shares_memory(state, env.unwrapped.state)
    np.testing.assert_array_equal(renderer.render([state])[0], env.render())


def test_a_cart_pole_frame_is_gymnasiums():
    env, renderer, rng = CartPole(render_mode="rgb_array"), CartPoleRenderer(400, 600), np.random.default_rng(1)
    env.reset(seed=0)
    corners = [(x, angle) for x in (-2.4, 0, 2.4) for angle in (-np.pi / 2, 0, np.pi / 2, np.pi)]
    for x, angle in [*corners, *rng.uniform((-2.6, -np.pi), (2.6, np.pi), (40, 2))]:
        env.state = np.array((x, rng.normal(), angle, rng.normal()))
        check_frame(env, renderer)


def test_a_mountain_car_frame_is_gymnasiums():
    """Also after a step, which leaves the state in float32."""
    env = gym.make("MountainCarContinuous-v0", render_mode="rgb_array")
    env.unwrapped.screen = pygame.Surface((600, 400))  # without the window system
    env.reset(seed=0)
    renderer = MountainCarRenderer(400, 600, textured=False)
    positions = [-1.2, 0.45, 0.6, *np.random.default_rng(1).uniform(-1.25, 0.65, 40)]
    for position, dtype in product(positions, (np.float32, np.float64)):
        env.unwrapped.state = np.array((position, 0.01), dtype=dtype)
        check_frame(env, renderer)


@pytest.mark.parametrize("kind", ["cart-pole", "mountain car"])
def test_other_sizes_show_the_same_scene(kind):
    """Smaller: the large frame with areas averaged. Larger: painted anew, about the same when averaged."""
    usual = KINDS[kind](400, 600)
    states = some_states(usual, 5)
    expected = usual.render(states)
    for size in ((192, 288), (101, 203)):
        for frame, of_large in zip(KINDS[kind](*size).render(states), expected, strict=True):
            error = np.abs(frame - average_areas(of_large.astype(float), *size))
            assert error.mean() < 0.05
            assert error.max() <= 3
    for frame, of_usual in zip(KINDS[kind](800, 1200).render(states), expected, strict=True):
        assert np.abs(average_areas(frame.astype(float), 400, 600) - of_usual).mean() < 2


def test_a_frame_depends_on_its_state_alone(make):
    """Of any size; and is not overwritten by later ones."""
    for size in ((61, 37), (1, 1), (390, 10)):
        renderer = make(*size)
        for states in (some_states(renderer, 3), np.empty((0, renderer.state_size))):
            frames = renderer.render(states)
            assert (frames.shape, frames.dtype) == ((len(states), *size, 3), np.uint8)
            assert frames.flags.c_contiguous
    renderer = make(96, 144)
    states = some_states(renderer, 30)
    frames = renderer.render(states)
    kept = frames.copy()
    np.testing.assert_array_equal(renderer.render(states[::-1]), frames[::-1])
    np.testing.assert_array_equal(make(96, 144).render(states[7:8]), frames[7:8])
    np.testing.assert_array_equal(frames, kept)


def test_a_used_renderer_can_be_pickled_and_closed_and_initialises_no_display(make):
    pygame.display.quit()
    renderer = make(48, 64)
    states = some_states(renderer, 4)
    frames = renderer.render(states)
    assert not pygame.display.get_init()
    pickled = pickle.dumps(renderer)
    assert len(pickled) < 1000
    np.testing.assert_array_equal(pickle.loads(pickled).render(states), frames)
    renderer.close()
    np.testing.assert_array_equal(renderer.render(states), frames)


def test_positions_far_outside_are_not_visible_and_bad_states_are_refused(make):
    renderer = make(96, 144)
    for far in (5.0, 1e300):
        at, other = (np.full((1, renderer.state_size), sign * far) for sign in (1, -1))
        np.testing.assert_array_equal(renderer.render(at), renderer.render(other))
    for shape, value, rule in (((2, renderer.state_size + 1), 0, "have the shape"), (at.shape, np.nan, "be finite")):
        with pytest.raises(ValueError, match=f"must {rule}"):
            renderer.render(np.full(shape, value))


def test_the_textured_car_is_at_its_position():
    renderer = MountainCarRenderer(400, 600, textured=True)
    positions = np.linspace(-1.1, 0.5, 17)
    for position, frame in zip(positions, renderer.render(positions[:, None]), strict=True):
        red = (frame[..., 0] > 110) & (frame[..., 1] < 60) & (frame[..., 2] < 60)
        rows, columns = np.nonzero(red)
        x, y = (position + 1.2) / 1.8 * 600, (np.sin(3 * position) * 0.45 + 0.55) / 1.8 * 600
        distance = np.hypot(columns.mean() - x, 400 - rows.mean() - y)
        assert len(rows) > 300
        assert 5 < distance < 20  # the body is above the wheels


def test_the_flag_is_yellow_at_the_goal():
    for size, position in product([(400, 600), (96, 96)], (-0.5, 0.45)):
        frame = MountainCarRenderer(*size, textured=True).render([(position,)])[0].astype(int)
        yellow = (frame[..., 0] > 190) & (frame[..., 1] > 150) & (frame[..., 2] < 90)
        rows, columns = np.nonzero(yellow)
        assert len(rows) / yellow.size > 0.002
        assert 550 - 4 < columns.min() * 600 / size[1] < 560  # at the pole
        assert columns.max() * 600 / size[1] < 592
        assert rows.max() * 400 / size[0] < 45  # above a car at the goal
