"""Environments of other packages, and Gymnasium's wrappers: the frame that is scored is the frame that they show.

requirements/environments.txt lists the packages; an environment whose package is missing is skipped.
"""

import functools
import gc
import importlib

import gymnasium as gym
import imageio
import mujoco
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from reward_models import RecordingReward, checksum

import vlmrm_gym
from vlmrm_gym import CaptureState

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),  # of moviepy
]

CHECKSUM = "reward_models:ChecksumReward"
SMALL = {"width": 120, "height": 120}
"""Pixels of environments that can be infos how many: software OpenGL is slow."""

ENVIRONMENTS = {
    "AdroitHandRelocate-v1": ("gymnasium_robotics", SMALL),
    "PointMaze_UMaze-v3": ("gymnasium_robotics", SMALL),
    "MiniGrid-DoorKey-5x5-v0": ("minigrid", {}),
    "PandaReach-v3": ("panda_gym", {"renderer": "Tiny", "render_width": 120, "render_height": 90}),
    "ALE/Pong-v5": ("ale_py", {}),
    "CarRacing-v3": ("Box2D", {}),  # others of Box2D draw something else each time: particles, a turning ray
    "dm_control/cartpole-swingup-v0": ("shimmy", {"render_kwargs": {**SMALL, "camera_id": 0}}),
    "HalfCheetah-v5": ("mujoco", SMALL),
    "CartPole-v1": ("gymnasium", {}),
}
"""By ID: the package that has it, and keywords."""


def make(env_id):
    package, kwargs = ENVIRONMENTS[env_id]
    module = importlib.import_module(package)
    if package == "shimmy":
        fit_dm_control()
    if package not in ("gymnasium", "mujoco", "Box2D"):
        gym.register_envs(module)
    return gym.make(env_id, render_mode="rgb_array", **kwargs)


def fit_dm_control():
    """Take from dm_control's tables the fields that MuJoCo 4 no longer has, on which dm_control 1.0.50 fails."""
    sizes = importlib.import_module("dm_control.mujoco.wrapper.mjbindings.sizes").array_sizes
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    for name, struct in (("mjmodel", model), ("mjdata", mujoco.MjData(model))):
        sizes[name] = {field: size for field, size in sizes[name].items() if hasattr(struct, field)}


def need(env_id):
    pytest.importorskip(
        ENVIRONMENTS[env_id][0], reason=f"{env_id} needs requirements/environments.txt", exc_type=ImportError
    )


def shown(env):
    """The frames that an environment shows after a step: after `mj_step` it draws positions of a substep before."""
    frames = [env.render()]
    model, data = getattr(env.unwrapped, "model", None), getattr(env.unwrapped, "data", None)
    if isinstance(model, mujoco.MjModel):
        mujoco.mj_forward(model, data)
        frames.append(env.render())
    return frames


def differences(scored, frames):
    return [f"{(scored != frame).any(axis=-1).mean():.1%} of the pixels differ" for frame in frames]


def actions_of(env, number):
    env.action_space.seed(1)
    return [env.action_space.sample() for _ in range(number)]


def assert_same(one, other):
    """Observations of any kind are equal to the bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same(value, other[key])
    else:
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def scored():
    """The frames that `RecordingReward` scores, in order."""
    RecordingReward.seen.clear()
    yield RecordingReward.seen
    RecordingReward.seen.clear()


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_what_is_shown_is_scored_and_all_else_stays_the_environments(env_id, scored):
    """Contract 10, to the pixel, and 7 and 9: observations and rewards; in the second episode too."""
    need(env_id)
    base, env = make(env_id), make(env_id)
    rewarded = vlmrm_gym.VLMReward(env, reward="reward_models:RecordingReward", quality="faithful")
    assert rewarded.observation_space == base.observation_space
    for seed in (0, 1):
        assert_same(rewarded.reset(seed=seed)[0], base.reset(seed=seed)[0])
        for action in actions_of(base, 5):
            expected, task_reward, *expected_ends, _ = base.step(action)
            observation, _, *ends, info = rewarded.step(action)
            assert_same(observation, expected)
            assert (ends, info["task_reward"]) == (expected_ends, float(task_reward))
            frames, _ = shown(env), shown(base)  # it moves what MuJoCo starts the next step from
            assert checksum(scored[-1]) in map(checksum, frames), differences(scored[-1], frames)
    assert len(scored) == 10
    base.close(), rewarded.close()


def capturing(env_id):
    return CaptureState(wrappers.TimeLimit(make(env_id), 3), quality="faithful")


def vector(env_id, kind):
    own = [functools.partial(capturing, env_id)] * 2
    if kind == "async":
        return AsyncVectorEnv(own, context="spawn", shared_memory=False, autoreset_mode=AutoresetMode.SAME_STEP)
    return SyncVectorEnv(own, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.mark.parametrize(
    ("env_id", "kind"),
    [
        ("AdroitHandRelocate-v1", "async"),
        ("MiniGrid-DoorKey-5x5-v0", "sync, scored by a worker"),
        ("MiniGrid-DoorKey-5x5-v0", "async"),
        ("dm_control/cartpole-swingup-v0", "sync, scored by a worker"),
        ("HalfCheetah-v5", "sync"),
    ],
)
def test_vectors_score_the_frames_that_one_environment_shows(env_id, kind):
    """Contract 1, 3 and 10: two episodes of each environment, the second scored after the first's reset."""
    need(env_id)
    base = vector(env_id, kind.partition(",")[0])
    envs = vlmrm_gym.VLMRewardVectorEnv(base, reward=CHECKSUM, num_workers=int("worker" in kind))
    base.action_space.seed(1)
    actions = [base.action_space.sample() for _ in range(6)]
    envs.reset(seed=5)
    scored = [envs.step(action)[4]["vlm_rewards"] for action in actions]
    rewards = [np.concatenate([own[number] for own in scored if own[number] is not None]) for number in range(2)]
    envs.close()
    for number in range(2):
        one, expected = capturing(env_id).env, []
        one.reset(seed=5 + number)
        for action in actions:
            truncated = one.step(action[number])[3]
            expected.append({checksum(frame) for frame in shown(one)})
            if truncated:
                one.reset()
        one.close()
        assert [reward in frames for reward, frames in zip(rewards[number], expected, strict=True)] == [True] * 6


FRONT = {"distance": 9.0, "azimuth": 90.0, "elevation": -60.0, "lookat": [0.0, 0.0, 0.0]}
VIEWS = {
    "dm_control/cartpole-swingup-v0": [0, "lookatcart"],
    "PointMaze_UMaze-v3": [FRONT, {**FRONT, "azimuth": 0.0, "distance": 14.0}],
}
"""Two cameras of environments that draw with code of their own."""


def brightness(frames):
    return frames.mean((1, 2, 3)) / 255


def rewards_from(env_id, camera):
    """Rewards (T,), the frames that `VLMReward.render` shows, and those that the environment itself does."""
    base = make(env_id)
    env = vlmrm_gym.VLMReward(base, reward=brightness, camera=camera)
    env.reset(seed=2)
    rewards, shown_by_reward, shown_by_env = [], [], []
    for action in actions_of(env, 4):
        rewards.append(env.step(action)[1])
        shown_by_reward.append(env.render())
        shown_by_env.append(base.render())
    env.close()
    return np.array(rewards), np.stack(shown_by_reward), np.stack(shown_by_env)


@pytest.mark.parametrize("env_id", VIEWS)
def test_chosen_cameras_of_environments_that_draw_with_code_of_their_own(env_id):
    """The minimum of each camera alone, both shown side by side; the environment itself renders as before."""
    need(env_id)
    both, shown_by_both, own = rewards_from(env_id, VIEWS[env_id])
    alone = [rewards_from(env_id, camera) for camera in VIEWS[env_id]]
    assert (alone[0][0] != alone[1][0]).all()
    np.testing.assert_allclose(both, np.minimum(alone[0][0], alone[1][0]), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(shown_by_both, np.concatenate([alone[0][1], alone[1][1]], axis=2))
    base = make(env_id)
    base.reset(seed=2)
    for action, frame in zip(actions_of(base, 4), own, strict=True):
        base.step(action)
        np.testing.assert_array_equal(base.render(), frame)
    base.close()


WRAPPERS = {
    "AddRenderObservation": functools.partial(wrappers.AddRenderObservation, render_only=True),
    "FrameStackObservation": functools.partial(wrappers.FrameStackObservation, stack_size=3),
    "NormalizeObservation": wrappers.NormalizeObservation,
}


def mujoco_or_not(env_id):
    # A camera of the model: where Gymnasium's own looks depends on the state that is rendered first.
    return gym.make(
        env_id, render_mode="rgb_array", **({**SMALL, "camera_name": "track"} if env_id == "Ant-v5" else {})
    )


def rolled(env, number=4):
    env.reset(seed=0)
    return [env.step(action) for action in actions_of(env, number)]


@pytest.mark.parametrize("env_id", ["Ant-v5", "CartPole-v1"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_under_and_around_change_no_reward_and_keep_their_observations(env_id, name):
    wrap, reward = WRAPPERS[name], functools.partial(vlmrm_gym.VLMReward, reward=CHECKSUM, quality="faithful")

    def made():
        return mujoco_or_not(env_id)

    # All are kept: a viewer of Gymnasium's that is collected frees what others in its thread draw with.
    envs = [reward(made()), wrap(made()), reward(wrap(made())), wrap(reward(made()))]
    plain, bare, under, around = map(rolled, envs)
    for expected, without, inside, outside in zip(plain, bare, under, around, strict=True):
        assert inside[1] == outside[1] == expected[1]
        assert_same(inside[0], without[0])
        if "Render" not in name:
            assert_same(outside[0], without[0])
        else:  # what `VLMReward` shows is the state that was scored
            assert checksum(outside[0]) == expected[1]


def test_record_video_under_and_around_shows_every_step(tmp_path):
    pytest.importorskip("moviepy", reason="RecordVideo needs requirements/environments.txt")
    reward = functools.partial(vlmrm_gym.VLMReward, reward=CHECKSUM, quality="faithful")

    def film(env, name):
        return wrappers.RecordVideo(env, str(tmp_path / name), episode_trigger=lambda episode: True)

    under, around = reward(film(mujoco_or_not("Ant-v5"), "under")), film(reward(mujoco_or_not("Ant-v5")), "around")
    for env, name in ((under, "under"), (around, "around")):
        env.reset(seed=0)
        for action in actions_of(env, 4):
            scored = env.step(action)[1]
            assert scored in map(checksum, shown(env.env if name == "around" else env.env.env))
        env.close()
        (video,) = (tmp_path / name).glob("*.mp4")
        frames = imageio.mimread(video)
        assert len(frames) == 5
        assert min(np.mean(frame) for frame in frames) > 20, "a black frame"


def test_an_environment_that_is_collected_leaves_the_frames_of_others_as_they_are():
    """MuJoCo's objects would be freed in the OpenGL context that is current, with those of the user's viewer."""
    env = vlmrm_gym.VLMReward(mujoco_or_not("Ant-v5"), reward=CHECKSUM)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    env.unwrapped.itself = env  # garbage only for the collector
    del env
    shown_by_others = mujoco_or_not("Ant-v5")
    shown_by_others.reset(seed=0)
    before = shown_by_others.render()
    gc.collect()
    np.testing.assert_array_equal(shown_by_others.render(), before)
    shown_by_others.close()
