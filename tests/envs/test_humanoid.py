"""The humanoid environment."""

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_match import check_environments_match
from gymnasium.vector import SyncVectorEnv

from vlmrm_gym.envs.humanoid import Humanoid
from vlmrm_gym.envs.humanoid_body import Body
from vlmrm_gym.envs.humanoid_poses import TASK_POSES, pose
from vlmrm_gym.tasks import PAPER_CAMERA

STILL = np.zeros(17, dtype=np.float32)


def redness(frames):
    return frames[..., 0].mean((1, 2)) / 255


def test_observations_dynamics_rewards_and_seeding_are_the_base_environments():
    """Contract 9: bitwise."""
    base = gym.make("Humanoid-v5", terminate_when_unhealthy=False)
    for textured, seed in ((True, 0), (False, 7)):
        world = Humanoid(textured=textured, task="kneel")
        check_environments_match(base, world, num_steps=60, seed=seed, info_comparison="superset")
    env = gym.make("VLMRM/Humanoid-stand-v0", reward=redness)
    check_environments_match(
        base, env, num_steps=20, seed=3, skip_rew=True, skip_render=True, info_comparison="superset"
    )


def test_success_is_of_the_state_after_the_action():
    """Without a task it is always False."""
    for task in ("kneel", "splits", None):
        env = Humanoid(task=task, textured=False)
        env.reset(seed=0)
        assert env.step(STILL)[4]["success"] is False
        env.set_state(pose(task or "kneel"), np.zeros(23))
        assert env.step(STILL)[4]["success"] is (task is not None)


def frame(**kwargs):
    """The first frame of an episode of the registered task."""
    env = gym.make("VLMRM/Humanoid-stand-v0", **{"textured": False, "reward": redness, **kwargs})
    env.reset(seed=0)
    shown = env.render()
    env.close()
    return shown


def test_the_default_camera_is_the_papers_and_can_be_changed():
    assert PAPER_CAMERA == {"distance": 3.5, "lookat": [0.0, 0.0, 1.0], "elevation": -10.0, "azimuth": 180.0}
    papers = frame()
    np.testing.assert_array_equal(papers, frame(camera=dict(PAPER_CAMERA)))
    for camera in ({"azimuth": 90, "lookat": [0, 0, 1]}, "track", {"trackbodyid": "torso"}):
        assert not np.array_equal(frame(camera=camera), papers)
    assert np.abs(frame(textured=True).astype(int) - papers).mean() > 20


def test_bad_arguments():
    for id, kwargs, error in (
        ("stand-v0", {"quality": "4k"}, "`quality` must be one of 'fast', 'faithful'"),
        ("stand-v0", {"textured": "yes"}, "`textured` must be True or False. Received 'yes'"),
        ("stand-v0", {"task": "backflip"}, "`task` must be one of 'kneel', 'lotus'"),
        ("stand-v0", {"start_near_goal": 1.5}, r"`start_near_goal` must be a number from 0 to 1\. Received 1.5\."),
        ("v0", {"prompt": "a robot", "start_near_goal": 0.5}, "`start_near_goal` needs a task, whose pose is known"),
    ):
        with pytest.raises(ValueError, match=error):
            gym.make(f"VLMRM/Humanoid-{id}", **kwargs)
    with pytest.raises(TypeError, match=r"`prompt` must be a text or a list of texts\. Received None"):
        gym.make("VLMRM/Humanoid-v0")


def starts(probability, episodes=60, task="splits"):
    """The states in which episodes start."""
    env = Humanoid(task=task, textured=False, start_near_goal=probability)
    env.reset(seed=0)
    states = []
    for _ in range(episodes):
        observation, _ = env.reset()
        states.append(env.data.qpos.copy())
        np.testing.assert_array_equal(observation[:22], states[-1][2:])
    return np.stack(states)


def test_episodes_may_start_anywhere_on_the_way_to_the_goal():
    for task in ("splits", "hands-on-hips"):
        states = starts(1.0, task=task)
        np.testing.assert_allclose(Body(states).lowest(), 0, atol=1e-9)
        way = pose(*TASK_POSES[task])[7:] - pose()[7:]
        shares = (states[:, 7:] - pose()[7:]) @ way / (way @ way)
        np.testing.assert_allclose(states[:, 7:], pose()[7:] + shares[:, None] * way, atol=1e-9)
        assert shares.min() < 0.1
        assert 0.4 < shares.mean() < 0.6
        assert shares.max() > 0.9
    usual = starts(0.0)
    assert np.abs(usual - usual.mean(0)).max() <= 0.02  # Gymnasium's noise
    near = (np.abs(starts(0.3, 200) - usual.mean(0)) > 0.02).any(axis=1)
    assert 0.2 < near.mean() < 0.4


def test_before_mujoco_4_humanoids_are_stepped_one_after_another():
    envs = gym.make_vec("VLMRM/Humanoid-stand-v0", 2)
    assert isinstance(envs.unwrapped, SyncVectorEnv) == (int(mujoco.__version__.split(".")[0]) < 4)
    envs.close()
