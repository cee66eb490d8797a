"""Several cameras: which views there are, how their rewards make one, and that no way of scoring changes it."""

import copy
import pickle

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import vlmrm_gym
from vlmrm_gym.rewards.heads import CombineViews
from vlmrm_gym.rewards.model import RewardModel
from vlmrm_gym.scoring.state_encoder import StateEncoder
from vlmrm_gym.states import SceneChange, States
from vlmrm_gym.states.cameras import PAPER_CAMERA, VIEW_SETS, get_fields, make_camera, make_cameras
from vlmrm_gym.states.mujoco import MuJoCoRenderer
from vlmrm_gym.tasks.humanoid_body import plain_model

SIDE = {**PAPER_CAMERA, "azimuth": 90.0}
FRONT_SIDE = [dict(PAPER_CAMERA), SIDE]
STEPS = 6


def redness(frames):
    """A reward that differs between views: the mean of the red pixels in the middle."""
    return frames[:, 8:-8, 8:-8, 0].mean((1, 2)) / 255


def swimmer():
    return gym.make("Swimmer-v5", render_mode="rgb_array", width=48, height=40, max_episode_steps=STEPS)


NEAR = {"distance": 4.0, "azimuth": 0.0, "elevation": -40.0, "lookat": [0, 0, 0]}
FAR = {"distance": 9.0, "azimuth": 60.0, "elevation": -20.0, "lookat": [0, 0, 0]}


def rewards_of_one(reward=redness, **kwargs):
    env = vlmrm_gym.VLMReward(swimmer(), reward=reward, **kwargs)
    env.reset(seed=3)
    rewards = [env.step(np.array([1.0, -1.0]))[1] for _ in range(STEPS)]
    env.close()
    return np.array(rewards)


def rewards_of_vector(inner, **kwargs):
    """Of the first of two environments, which are seeded 3 and 4: float (STEPS,)."""
    envs = vlmrm_gym.VLMRewardVectorEnv(inner, reward=redness, **kwargs)
    envs.reset(seed=3)
    stepwise = []
    for _ in range(STEPS):
        _, rewards, _, _, infos = envs.step(np.tile([1.0, -1.0], (2, 1)))
        stepwise.append(rewards[0])
    envs.close()
    return np.array(stepwise) if kwargs.get("scoring") == "step" else infos["vlm_rewards"][0]


@pytest.fixture(scope="module")
def single_views():
    """The rewards of the near and of the far camera, each on its own."""
    near, far = rewards_of_one(camera=NEAR), rewards_of_one(camera=FAR)
    assert np.abs(near - far).min() > 1e-3
    return near, far


def test_each_view_equals_its_own_camera_also_when_captured_states_are_cut_and_joined():
    states = np.zeros((5, 24))
    states[:, 2], states[:, 3] = 1.2, 1
    states[:, 7:] = np.random.default_rng(0).uniform(-0.5, 0.5, (5, 17))
    one_by_one = [MuJoCoRenderer(plain_model(), 40, 56, camera=camera) for camera in FRONT_SIDE]
    expected = np.stack([renderer.render(states) for renderer in one_by_one], axis=1)
    both = MuJoCoRenderer(plain_model(), 40, 56, camera=FRONT_SIDE)
    assert both.num_views == 2
    frames = both.render(states)
    assert frames.shape == (5, 2, 40, 56, 3)
    assert frames.flags.c_contiguous
    np.testing.assert_array_equal(frames, expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(both)).render(states), expected)
    captured = np.full((2, 40, 56, 3), [[[[1]]], [[[2]]]], dtype=np.uint8)
    change = SceneChange(frame=captured)
    some = States(states, [None, change, None, change, None])
    expected[[1, 3]] = captured
    for one in (some, States.concatenate([some[:2], some[2:]])):
        np.testing.assert_array_equal(one.draw(both), expected)
    for renderer in (*one_by_one, both):
        renderer.close()


def test_named_sets_turn_the_reference_camera():
    model = plain_model()
    own = {"distance": 2.0, "azimuth": 30.0, "elevation": -5.0, "lookat": [1, 2, 3]}
    sets = {name: make_cameras(model, name, own) for name in VIEW_SETS}
    assert {name: [camera.azimuth % 360 for camera in cameras] for name, cameras in sets.items()} == {
        "paper": [180],
        "side": [300],
        "front-side": [30, 300],
        "around": [30, 300, 210, 120],
    }
    for camera in (*sets["front-side"], *sets["around"]):
        assert (camera.distance, camera.elevation, camera.lookat.tolist()) == (2.0, -5.0, [1, 2, 3])
    assert get_fields(*sets["paper"])["lookat"] == (0, 0, 1)
    listed = make_cameras(model, ["track", "front-side", {"azimuth": 7}], own)
    assert [camera.type for camera in listed] == [2, 0, 0, 0]


def test_a_camera_of_the_model_takes_precedence_over_a_set():
    xml = '<mujoco><worldbody><camera name="around" pos="0 0 3"/><geom size="1"/></worldbody></mujoco>'
    (camera,) = make_cameras(mujoco.MjModel.from_xml_string(xml), "around")
    assert (camera.type, camera.fixedcamid) == (mujoco.mjtCamera.mjCAMERA_FIXED, 0)


def test_cameras_that_cannot_be():
    model = plain_model()
    fixed = make_camera(model, "track")
    for camera, own, message in (
        ([], PAPER_CAMERA, r"must be a camera, or a list of at least one. Received \[\]"),
        ("from-above", PAPER_CAMERA, "no camera 'from-above'. Valid: .* Named sets: 'paper', 'side', 'front-side', 'a"),
        ([NEAR, None, {"distnce": 3}], PAPER_CAMERA, "no field 'distnce'"),
        ("front-side", fixed, "turns the environment's own camera, which is fixed in its model"),
    ):
        with pytest.raises(ValueError, match=message):
            make_cameras(model, camera, own)


@given(arrays(np.float32, (7, 3), elements=st.floats(-2, 2, width=32)))
def test_min_and_mean(rewards):
    np.testing.assert_array_equal(CombineViews("min", 3)(rewards), [min(row) for row in rewards.tolist()])
    np.testing.assert_allclose(CombineViews("mean", 3)(rewards), [sum(row) / 3 for row in rewards.tolist()], atol=1e-6)


def second_highest(rewards):
    return np.sort(rewards, axis=1)[:, -2]


def test_a_function_combines():
    rewards = np.array([[1, 5, 3], [9, 7, 8]], dtype=np.float32)
    for how in (second_highest, f"{__name__}:second_highest"):
        combine = CombineViews(how, 3)
        for one in (combine, pickle.loads(pickle.dumps(combine)), copy.deepcopy(combine)):
            assert one(rewards).tolist() == [3, 8]


def test_functions_that_do_not_combine():
    for how, message in (
        ("max", "must be one of 'min', 'mean', a function"),
        (None, "must be one of"),
        (np.min, r"to numbers \(B,\), row by row. Received .* of shape \(\) for \(3, 2\)"),
        (lambda rewards: rewards, r"of shape \(3, 2\)"),
        (lambda rewards: rewards.mean(1) - rewards.mean(), "depends on the other rows"),
        (lambda rewards: rewards.mean(1, dtype=np.float64) * 1e300, "a finite number"),
        (lambda rewards: rewards[:, 5], "which raised IndexError"),
        (f"{__name__}:no_such", "has no attribute 'no_such'"),
    ):
        with pytest.raises(ValueError, match=message):
            CombineViews(how, 2)
    combine = CombineViews(lambda rewards: rewards.mean(1, dtype=np.float64) * np.where(rewards[:, 0] > 1, 1e300, 1), 2)
    with pytest.raises(ValueError, match="must return a finite number for each row"):
        combine(np.array([[0.5, 0.5], [2, 2]], dtype=np.float32))


class Joint(RewardModel):
    """A reward of all views at once: red of the first view minus that of the last."""

    encodes = "views"
    batch_size = 5

    def encode(self, frames):
        assert frames.ndim == 5
        assert len(frames) <= max(1, 5 // frames.shape[1])
        return (redness(frames[:, 0]) - redness(frames[:, -1]))[:, None]


def test_a_reward_can_see_all_views_at_once(single_views):
    rewards = rewards_of_one(Joint(), camera=[NEAR, FAR])
    np.testing.assert_allclose(rewards, single_views[0] - single_views[1], atol=1e-5)
    assert not rewards_of_one(Joint(), camera=NEAR).any()
    with pytest.raises(ValueError, match="`combine_views` is not for a reward that sees all views at once"):
        rewards_of_one(Joint(), camera=[NEAR, FAR], combine_views="min")


def test_a_batch_holds_all_views_of_a_state():
    for batch_size, views, states in ((1, 4, 1), (7, 2, 3), (8, 2, 4)):
        model = type("R", (RewardModel,), {"batch_size": batch_size})()
        assert StateEncoder(model, views).info.batch_size == states


def capturing():
    return vlmrm_gym.CaptureState(swimmer(), camera=[NEAR, FAR])


MODES = {
    "one": {},
    "episode": {},
    "step": {"scoring": "step"},
    "small batches": {"max_pending_bytes": 400},
    "async": {"num_workers": 1, "camera": None},
}


@pytest.mark.parametrize("mode", [*list(MODES)[:-1], pytest.param("async", marks=pytest.mark.slow)])
def test_no_way_of_scoring_changes_a_combined_reward(mode, single_views):
    """Contract 3."""
    near, far = single_views
    ways = {"mean": (near + far) / 2, None: np.minimum(near, far), highest: np.maximum(near, far)}
    for how, expected in ways.items() if mode == "one" else [("mean", ways["mean"])]:
        options = {"camera": [NEAR, FAR], "combine_views": how, **MODES[mode]}
        if mode == "one":
            rewards = rewards_of_one(**options)
        elif mode == "async":
            rewards = rewards_of_vector(AsyncVectorEnv([capturing] * 2, context="spawn"), **options)
        else:
            rewards = rewards_of_vector(SyncVectorEnv([swimmer] * 2), **options)
        np.testing.assert_allclose(rewards, expected, atol=1e-5)


def highest(rewards):
    return rewards.max(1)


def test_how_the_reward_of_one_camera_is_combined(single_views):
    """Not at all, or by the function."""
    for how, factor in (("min", 1), ("mean", 1), (lambda views: 3 * views[:, 0], 3)):
        np.testing.assert_allclose(rewards_of_one(camera=NEAR, combine_views=how), factor * single_views[0], atol=1e-5)


def test_frames_of_several_views_are_shown_side_by_side():
    """Registered humanoids turn the paper's camera. Environments of a vector have equally many cameras."""
    env, near = (vlmrm_gym.VLMReward(swimmer(), reward=redness, camera=camera) for camera in ([NEAR, FAR], NEAR))
    envs = vlmrm_gym.VLMRewardVectorEnv(SyncVectorEnv([swimmer] * 2), reward=redness, camera=[NEAR, FAR])
    for one in (env, envs, near):
        one.reset(seed=3)
    shown = env.render()
    assert shown.shape == (40, 96, 3)
    np.testing.assert_array_equal(near.render(), shown[:, :48])
    np.testing.assert_array_equal(envs.render()[0], shown)
    humanoids = [
        gym.make("VLMRM/Humanoid-kneel-v0", reward=redness, textured=False, camera=camera)
        for camera in ("front-side", FRONT_SIDE)
    ]
    for one in humanoids:
        one.reset(seed=0)
    np.testing.assert_array_equal(*(one.render() for one in humanoids))
    for one in (env, envs, near, *humanoids):
        one.close()
    unequal = SyncVectorEnv([capturing, lambda: vlmrm_gym.CaptureState(swimmer(), camera=NEAR)])
    with pytest.raises(ValueError, match=r"equally many cameras. Received \[2, 1\]"):
        vlmrm_gym.VLMRewardVectorEnv(unequal, reward=redness)
    unequal.close()
