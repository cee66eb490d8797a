"""A constructor that raises leaves the environments that it was given as they were, but for the camera."""

import copy
import inspect
from functools import cache, partial

import gymnasium as gym
import numpy as np
import pytest
from bad_options import BAD, passed
from changing_env import ChangingEnv
from conftest import TASK_PROMPT
from counting_env import Counting
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

import vlmrm_gym
from vlmrm_gym import CaptureState
from vlmrm_gym.envs.make import make_env
from vlmrm_gym.sb3 import make_vec_env
from vlmrm_gym.scoring.queue import ScoringQueue
from vlmrm_gym.tasks.cartpole import CartPole

NEED_THE_ENVIRONMENTS = {"camera", "combine_views", "device"}
"""Keywords that are checked after the functions of a list have made environments."""


class BrokenReward:
    """Fails when it is made."""

    def __init__(self):
        raise ArithmeticError("this reward cannot be made")


class BrokenSizeReward(vlmrm_gym.RewardModel):
    """Fails when the renderer is made: the last thing that can."""

    def render_size(self, height, width):
        raise ArithmeticError("no size is right")

    def encode(self, frames):
        return np.zeros((len(frames), 1))


def snapshot(env):
    return copy.deepcopy(env.metadata), copy.copy(vars(env))


def check_unchanged(env, before):
    metadata, attributes = before
    assert env.metadata == metadata
    assert vars(env).keys() == attributes.keys()


def test_a_bad_parameter_changes_no_environment():
    """Of one environment, and of a captured one."""
    env = ChangingEnv()
    before = snapshot(env)
    for name in BAD.keys() & inspect.signature(vlmrm_gym.VLMReward).parameters:
        with pytest.raises((ValueError, TypeError), match=f"`{name}`"):
            vlmrm_gym.VLMReward(env, **passed(name))
        check_unchanged(env, before)
    with pytest.raises(ValueError, match="no such camera"):
        CaptureState(env, camera="no such camera")
    check_unchanged(env, before)
    env.close()


def test_a_bad_parameter_changes_no_vector():
    """Nor the environments that a list of functions makes, where it is seen after they are made."""
    env = ChangingEnv()
    before = snapshot(env)
    envs = gym.vector.SyncVectorEnv([lambda: env])
    for name in BAD:
        made = []
        for given in (envs, [lambda made=made: made.append(env) or env]):
            with pytest.raises((ValueError, TypeError), match=f"`{name}`"):
                vlmrm_gym.VLMRewardVectorEnv(given, **{"num_workers": 1, **passed(name)})
            assert envs.envs[0] is env
            check_unchanged(env, before)
        assert bool(made) == (name in NEED_THE_ENVIRONMENTS), name
    envs.close()


@pytest.mark.parametrize(
    ("reward", "num_workers"), [("BrokenReward", 0), ("BrokenSizeReward", 0), ("BrokenSizeReward", 1)]
)
def test_a_reward_that_cannot_be_made(reward, num_workers):
    """Of one environment, and of a vector, here and in a worker."""
    env = ChangingEnv()
    before = snapshot(env)
    envs = gym.vector.SyncVectorEnv([lambda: env])
    several = partial(vlmrm_gym.VLMRewardVectorEnv, envs, num_workers=num_workers)
    for construct in (several, *[partial(vlmrm_gym.VLMReward, env)] * (not num_workers)):
        with pytest.raises(ArithmeticError):
            construct(reward=f"test_failed_constructors:{reward}")
        assert envs.envs[0] is env
        check_unchanged(env, before)
    envs.close()


def test_a_constructor_that_succeeds_pins_the_camera():
    """What the environment shows is then what is scored, to the pixel."""
    for vector in (False, True):
        env = ChangingEnv()
        kwargs = {"reward": "reward_models:PixelReward", "quality": "faithful"}
        scored = (
            vlmrm_gym.VLMRewardVectorEnv([lambda e=env: e], **kwargs) if vector else vlmrm_gym.VLMReward(env, **kwargs)
        )
        scored.reset(seed=0)
        frame = scored.render()[0] if vector else scored.render()
        np.testing.assert_array_equal(frame, env.render())
        assert "lookat" in env.mujoco_renderer.default_cam_config
        scored.close()


class Closing(Counting):
    """Keeps a list of the environments that were closed."""

    def __init__(self, closed):
        super().__init__()
        self.closed = closed

    def close(self):
        self.closed.append(self)
        super().close()


def test_which_environments_are_closed():
    """Those that were made of functions, none that the caller passed in; a failing `close` hides no error."""
    made, closed = [], []
    make = lambda: made.append(Closing(closed)) or made[-1]  # noqa: E731
    with pytest.raises(ValueError, match="`camera` is for MuJoCo environments"):
        vlmrm_gym.VLMRewardVectorEnv([make] * 3, TASK_PROMPT, camera="front-side")
    assert set(closed) == set(made) != set()
    closed.clear()
    with pytest.raises(ValueError, match=r"different object for each environment. Received .* also as number 1"):
        vlmrm_gym.VLMRewardVectorEnv([cache(make)] * 2, TASK_PROMPT)
    assert set(closed) == {made[-1]}
    closed.clear()
    given = gym.vector.SyncVectorEnv([lambda: Closing(closed)])
    with pytest.raises(ValueError, match="`camera` is for MuJoCo environments"):
        vlmrm_gym.VLMRewardVectorEnv(given, TASK_PROMPT, camera="front-side")
    assert not closed

    class Stuck(Counting):
        def close(self):
            raise RuntimeError("stuck")

    with pytest.raises(ValueError, match="`camera` is for MuJoCo environments"):
        vlmrm_gym.VLMRewardVectorEnv([Stuck], TASK_PROMPT, camera="front-side")


def test_environments_of_an_id_that_cannot_be_scored_are_closed(monkeypatch):
    doors = [(door, "VLMRM/CartPole-v1") for door in (gym.make, gym.make_vec, make_env, make_vec_env)]
    closed = []
    for kind in (CartPole, CartPoleEnv):
        monkeypatch.setattr(kind, "close", lambda self: closed.append(self))
    for number, (door, env_id) in enumerate([*doors, (make_env, "CartPole-v1")], 1):
        with pytest.raises(ValueError, match="`camera` is for MuJoCo environments") as raised:
            door(env_id, prompt=TASK_PROMPT, camera="front-side")
        assert len(closed) == number
        del raised  # its traceback holds the environment, which would otherwise be closed when it is collected


def test_scoring_stops_if_stable_baselines_cannot_take_the_environments(monkeypatch):
    """Workers would otherwise stay alive."""
    closed = []
    close = ScoringQueue.close
    monkeypatch.setattr(ScoringQueue, "close", lambda self: (closed.append(self), close(self)))
    with pytest.raises(ValueError, match=r"space` must be a box or discrete space.*Tuple") as raised:
        make_vec_env("Blackjack-v1", 2, reward="reward_models:PixelReward")
    assert len(closed) == 1
    del raised


def test_a_reward_of_ones_own_refuses_a_device_that_is_not_there():
    for door, env in ((vlmrm_gym.VLMReward, Counting()), (vlmrm_gym.VLMRewardVectorEnv, [Counting])):
        with pytest.raises(ValueError, match=r"`device` must be .* Received 'bogus'"):
            door(env, reward=lambda frames: frames.mean((1, 2, 3)), device="bogus")
