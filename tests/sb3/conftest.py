"""Environments for Stable-Baselines3 that are closed when a test ends."""

import pytest
from sb3_helpers import make_counting

from vlmrm_gym.sb3 import make_vec_env


@pytest.fixture
def make_envs():
    """`make_vec_env`."""
    made = []
    yield lambda *args, **kwargs: made.append(make_vec_env(*args, **kwargs)) or made[-1]
    for envs in made:
        envs.close()


@pytest.fixture
def counting():
    """`make_counting`."""
    made = []
    yield lambda *args, **kwargs: made.append(make_counting(*args, **kwargs)) or made[-1]
    for envs, _ in made:
        envs.close()
