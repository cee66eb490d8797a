"""The textured humanoid: other frames, the same dynamics."""

import mujoco
import numpy as np
import pytest

from vlmrm_gym.envs.humanoid import MATERIALS, textured_model
from vlmrm_gym.envs.humanoid_body import plain_model
from vlmrm_gym.states.mujoco import MuJoCoRenderer

SEEN = ("tex", "mat_", "light_", "geom_matid", "geom_rgba", "name")
SEEN += ("ntex", "nmat", "nlight", "nnames", "npaths", "nbuffer")
CAMERA = {"distance": 3.5, "lookat": (0, 0, 1), "elevation": -10}


@pytest.fixture(scope="module")
def textured() -> mujoco.MjModel:
    return textured_model()


def views(model: mujoco.MjModel, *cameras: dict) -> np.ndarray:
    """What several cameras show of the scene, the robot being out of sight: int (V, 96, 96, 3)."""
    state = model.qpos0.copy()
    state[2] = 100
    renderer = MuJoCoRenderer(model, 96, 96, camera=[CAMERA | camera for camera in cameras])
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
