"""Shared by all tests. Nothing here or below may download anything."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported

import numpy as np
import pytest

import vlmrm_gym  # noqa: F401  (registers the IDs)
from vlmrm_gym.envs import CartPole

TASK_PROMPT = "pole vertically upright on top of the cart"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def cartpole_frame(angle: float, position: float = 0.0) -> np.ndarray:
    """What cart-pole looks like: uint8 (400, 600, 3) for an angle in degrees and a cart position."""
    env = CartPole(render_mode="rgb_array")
    env.reset()
    env.state = np.array([position, 0.0, np.deg2rad(angle), 0.0])
    frame = env.render()
    assert frame is not None
    return frame
