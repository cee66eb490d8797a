"""Realistic textures for the MuJoCo humanoid: a sky with clouds, a tiled floor, robot skin. Dynamics are unchanged."""

from pathlib import Path
from xml.etree import ElementTree

import mujoco

from vlmrm_gym.envs.humanoid_body import XML

MATERIALS = {
    "floor": ("floor",),
    "shell": ("torso1", "butt", "right_thigh1", "left_thigh1", "right_uarm1", "left_uarm1"),
    "limb": ("right_larm", "left_larm", "right_shin1", "left_shin1"),
    "joint": ("uwaist", "lwaist", "right_hand", "left_hand", "right_foot", "left_foot"),
    "head": ("head",),
}
"""The geoms of each material. Limbs differ from the shell so that an arm in front of the torso is visible."""

_FOLDER = Path(__file__).parent / "textures"


def textured_model() -> mujoco.MjModel:
    """Gymnasium's humanoid with realistic textures; dynamics and cameras do not change. Its lights are replaced."""
    model = ElementTree.parse(XML).getroot()
    scene = ElementTree.parse(_FOLDER / "scene.xml").getroot()
    for section, old in (("asset", "texture[@type='skybox']"), ("worldbody", "light")):
        for parent in model.findall(section):
            for element in parent.findall(old):
                parent.remove(element)
    model.extend([*scene.findall("visual"), *scene.findall("asset")])
    for torso in model.findall(".//body[@name='torso']"):
        torso.extend(scene.findall("torso/light"))
    for material, names in MATERIALS.items():
        for name in names:
            for geom in model.findall(f".//geom[@name='{name}']"):
                geom.attrib |= {"material": material, "rgba": "1 1 1 1"}
    pictures = {path.name: path.read_bytes() for path in _FOLDER.glob("*.png")}
    return mujoco.MjModel.from_xml_string(ElementTree.tostring(model, encoding="unicode"), pictures)
