"""The textured humanoid: other frames, the same dynamics."""

import os
from pathlib import Path

import gymnasium
import mujoco
import numpy as np
import pytest

from vlmrm_gym.envs.humanoid_textures import SKINS, textured_model
from vlmrm_gym.rendering.mujoco import MuJoCoRenderer
from vlmrm_gym.rendering.opengl import make_context

XML = os.path.join(os.path.dirname(gymnasium.__file__), "envs", "mujoco", "assets", "humanoid.xml")
SEEN = (
    "tex",
    "mat_",
    "light_",
    "geom_matid",
    "geom_rgba",
    "name",
    "ntex",
    "nmat",
    "nlight",
    "nnames",
    "nbuffer",
    "signature",
)
CAMERA = {"distance": 3.5, "lookat": (0, 0, 1), "elevation": -10}


@pytest.fixture(scope="module")
def plain() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(XML)


@pytest.fixture(scope="module")
def textured() -> mujoco.MjModel:
    return textured_model(XML)


@pytest.fixture(scope="module")
def opengl():
    try:
        context = make_context(8, 8, None)
    except gymnasium.error.DependencyNotInstalled as error:
        pytest.skip(str(error))
    context.free()


def view(model: mujoco.MjModel, height: float = 1.29, **camera) -> np.ndarray:
    state = model.qpos0.copy()
    state[2] = height
    renderer = MuJoCoRenderer(model, 96, 96, camera=CAMERA | camera)
    try:
        return renderer.render(state[None])[0].astype(int)
    finally:
        renderer.close()


def test_200_random_actions_lead_to_bitwise_equal_states(plain, textured, rng):
    ours, gymnasiums = mujoco.MjData(textured), mujoco.MjData(plain)
    for _ in range(200):
        action = rng.uniform(-0.4, 0.4, size=plain.nu)
        for model, data in ((textured, ours), (plain, gymnasiums)):
            data.ctrl[:] = action
            mujoco.mj_step(model, data, nstep=5)
        np.testing.assert_array_equal(ours.qpos, gymnasiums.qpos)
        np.testing.assert_array_equal(ours.qvel, gymnasiums.qvel)
    assert gymnasiums.qpos[2] < 1  # it fell, so contacts were part of it


def test_every_field_of_the_model_that_does_not_affect_rendering_is_unchanged(plain, textured):
    compared = []
    for field in dir(plain):
        expected = getattr(plain, field)
        # Those of lights, textures and materials, and the tables of all names, which theirs shift.
        if field.startswith(("_", *SEEN)) or (field.endswith("adr") and field.startswith("name_")):
            continue
        if isinstance(expected, np.ndarray | int | float):
            np.testing.assert_array_equal(getattr(textured, field), expected, err_msg=field)
            compared.append(field)
    assert {"body_mass", "body_inertia", "geom_size", "geom_pos", "geom_friction", "dof_damping", "nq"} <= set(compared)
    for field in ("timestep", "integrator", "solver", "iterations", "gravity"):
        np.testing.assert_array_equal(getattr(textured.opt, field), getattr(plain.opt, field))


def test_names_and_numbers_of_bodies_joints_geoms_and_cameras_are_unchanged(plain, textured):
    for kind, count in (("body", plain.nbody), ("jnt", plain.njnt), ("geom", plain.ngeom), ("cam", plain.ncam)):
        accessor = {"jnt": "joint"}.get(kind, kind)
        for index in range(count):
            assert getattr(textured, accessor)(index).name == getattr(plain, accessor)(index).name


def test_the_floor_reflects_nothing(textured):
    assert textured.mat_reflectance[textured.geom("floor").matid] == 0


def test_every_geom_of_gymnasiums_humanoid_has_a_texture(textured):
    materials = {textured.geom(index).matid.item() for index in range(textured.ngeom)}
    assert len(materials) == len(SKINS) + 1
    assert all(textured.mat(index).name.startswith("realistic_") for index in materials)


def test_textures_are_deterministic(textured):
    np.testing.assert_array_equal(textured_model(XML).tex_data, textured.tex_data)


def test_a_file_without_the_geoms_says_which_are_missing_and_which_it_has(tmp_path):
    path = tmp_path / "other.xml"
    path.write_text(Path(XML).read_text().replace('"left_hand"', '"left_claw"'))
    with pytest.raises(ValueError, match=r"no geom 'left_hand'; it has 'floor', .*'left_claw'"):
        textured_model(str(path))


def test_a_missing_file_is_a_value_error():
    with pytest.raises(ValueError, match="nowhere"):
        textured_model("nowhere.xml")


def test_a_users_own_geoms_lights_and_textures_may_be_there_too(tmp_path):
    path = tmp_path / "more.xml"
    extra = '<geom name="box" type="box" size=".1 .1 .1" pos="2 0 .1"/><light name="lamp" pos="0 0 3"/></worldbody>'
    path.write_text(Path(XML).read_text().replace("</worldbody>", extra))
    model = textured_model(str(path))
    np.testing.assert_allclose(model.geom("box").rgba, (0.8, 0.6, 0.4, 1))


@pytest.mark.usefixtures("opengl")
@pytest.mark.parametrize("azimuth", range(0, 360, 45))
def test_the_sky_is_up(textured, azimuth):
    """It is the upper part of the picture, brighter than the floor, and bluer, and bluer still higher up."""
    frame = view(textured, height=100, azimuth=azimuth)  # the robot is out of sight
    blueness = (frame[..., 2] - frame[..., 0]).mean(axis=1)
    assert frame[:20].mean() > frame[40:].mean() + 20
    assert blueness[:20].mean() > blueness[40:].mean() + 15
    above = view(textured, height=100, azimuth=azimuth, elevation=60, lookat=(0, 0, 20))
    assert (above[..., 2] - above[..., 0]).mean() > blueness[:20].mean()


@pytest.mark.usefixtures("opengl")
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("turn", range(4))
def test_the_sky_has_no_seams(textured, axis, turn):
    """Faces meet in the middle of these pictures; neighbouring pixels differ no more there than elsewhere."""
    azimuth, elevation = (90 * turn, 45) if axis == 0 else (90 * turn + 45, 20)
    frame = view(textured, height=100, azimuth=azimuth, elevation=elevation, lookat=(0, 0, 20))
    jumps = np.abs(np.diff(frame[:70], axis=axis)).mean(axis=(1 - axis, 2))
    assert jumps[46:49].max() <= max(jumps[:46].max(), jumps[49:].max())


@pytest.mark.usefixtures("opengl")
@pytest.mark.parametrize("azimuth", [0, 90, 180, 270])
def test_the_skys_floor_continues_the_floor(textured, azimuth):
    """The floor ends 20 m from the origin, 3.9 degrees below the horizon: in row 35."""
    frame = view(textured, height=100, azimuth=azimuth)
    np.testing.assert_allclose(frame[33:35].mean(axis=(0, 1)), frame[36:46].mean(axis=(0, 1)), atol=20)


@pytest.mark.usefixtures("opengl")
def test_the_visor_is_in_front(textured):
    front, back = (view(textured, distance=0.8, lookat=(0, 0, 1.48), elevation=0, azimuth=a) for a in (180, 0))
    assert front[40:56, 40:56].mean() < 90
    assert back[40:56, 40:56].mean() > 130


@pytest.mark.usefixtures("opengl")
def test_forearms_are_visible_in_front_of_the_torso_at_96_pixels(textured):
    """Where the arms are crossed before the chest, pixels turn orange."""
    crossed = textured.qpos0.copy()
    crossed[2], crossed[18:24] = 1.29, (0.3, 0.9, -1.3, -0.3, -0.9, -1.3)
    renderer = MuJoCoRenderer(textured, 96, 96, camera=CAMERA | {"azimuth": 180})
    frame = renderer.render(crossed[None])[0].astype(int)
    renderer.close()
    orange = frame[..., 0] - frame[..., 2] > 60
    assert orange[25:50].sum() >= 8
