"""The humanoid environment; its textures: other frames, the same dynamics."""

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_match import check_environments_match
from gymnasium.vector import SyncVectorEnv

from vlmrm_gym.states.cameras import PAPER_CAMERA
from vlmrm_gym.states.mujoco import MuJoCoRenderer
from vlmrm_gym.tasks.humanoid import MATERIALS, Humanoid, textured_model
from vlmrm_gym.tasks.humanoid_body import Body, plain_model
from vlmrm_gym.tasks.humanoid_poses import TASK_POSES, pose

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


SEEN = ("tex", "mat_", "light_", "geom_matid", "geom_rgba", "name")
SEEN += ("ntex", "nmat", "nlight", "nnames", "npaths", "nbuffer")


@pytest.fixture(scope="module")
def textured() -> mujoco.MjModel:
    return textured_model()


def views(model: mujoco.MjModel, *cameras: dict) -> np.ndarray:
    """What several cameras show of the scene, the robot being out of sight: int (V, 96, 96, 3)."""
    state = model.qpos0.copy()
    state[2] = 100
    renderer = MuJoCoRenderer(model, 96, 96, camera=[PAPER_CAMERA | camera for camera in cameras])
    frames = renderer.render(state[None])[0].astype(int)
    renderer.close()
    return frames.reshape(-1, 96, 96, 3)


def test_200_random_actions_lead_to_bitwise_equal_states(textured, rng):
    plain = plain_model()
    ours, gymnasiums = mujoco.MjData(textured), mujoco.MjData(plain)
    for _ in range(200):
        action = rng.uniform(-0.4, 0.4, size=plain.nu)
        for model, data in ((textured, ours), (plain, gymnasiums)):
            data.ctrl[:] = action
            mujoco.mj_step(model, data, nstep=5)
        np.testing.assert_array_equal(ours.qpos, gymnasiums.qpos)
        np.testing.assert_array_equal(ours.qvel, gymnasiums.qvel)
    assert gymnasiums.qpos[2] < 1  # it fell, so contacts were part of it


def test_every_field_of_the_model_that_does_not_affect_rendering_is_unchanged(textured):
    plain, compared = plain_model(), []
    for field in dir(plain):
        expected = getattr(plain, field)
        # Those of lights, textures and materials, and the tables of all names, which theirs shift.
        if field.startswith(("_", "signature", *SEEN)) or (field.endswith("adr") and field.startswith("name_")):
            continue
        if isinstance(expected, np.ndarray | int | float):
            np.testing.assert_array_equal(getattr(textured, field), expected, err_msg=field)
            compared.append(field)
    assert {"body_mass", "body_inertia", "geom_size", "geom_pos", "geom_friction", "dof_damping", "nq"} <= set(compared)
    for field in ("timestep", "integrator", "solver", "iterations", "gravity"):
        np.testing.assert_array_equal(getattr(textured.opt, field), getattr(plain.opt, field))
    for kind, count in (("body", plain.nbody), ("joint", plain.njnt), ("geom", plain.ngeom), ("camera", plain.ncam)):
        names = [[getattr(model, kind)(index).name for index in range(count)] for model in (textured, plain)]
        assert names[0] == names[1]


def test_every_geom_has_a_texture_and_the_floor_reflects_nothing(textured):
    assert textured.mat_reflectance[textured.geom("floor").matid] == 0
    materials = [textured.mat(textured.geom(index).matid.item()).name for index in range(textured.ngeom)]
    assert set(materials) == {"floor", *MATERIALS}


def test_the_sky_is_up(textured):
    """It is the upper part of the picture, brighter than the floor, and bluer, and bluer still higher up."""
    azimuths = [{"azimuth": azimuth} for azimuth in range(0, 360, 45)]
    level = views(textured, *azimuths)
    above = views(textured, *(one | {"elevation": 60, "lookat": (0, 0, 20)} for one in azimuths))
    for frame, higher in zip(level, above, strict=True):
        blueness = (frame[..., 2] - frame[..., 0]).mean(axis=1)
        assert frame[:20].mean() > frame[40:].mean() + 20
        assert blueness[:20].mean() > blueness[40:].mean() + 15
        assert (higher[..., 2] - higher[..., 0]).mean() > blueness[:20].mean()
