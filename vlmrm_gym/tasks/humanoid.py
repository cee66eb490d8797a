"""The humanoid as in the paper: Gymnasium's, without termination, and with the tasks' success criteria."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import mujoco
import numpy as np
from gymnasium.envs.mujoco.humanoid_v5 import HumanoidEnv

from vlmrm_gym._util.validation import check_choice, check_flag, check_fraction
from vlmrm_gym.tasks.humanoid_body import XML
from vlmrm_gym.tasks.humanoid_poses import interpolate_from_stand, on_floor
from vlmrm_gym.tasks.humanoid_success import SUCCESS_CRITERIA, succeeds

MATERIALS = {
    "floor": ("floor",),
    "shell": ("torso1", "butt", "right_thigh1", "left_thigh1", "right_uarm1", "left_uarm1"),
    "limb": ("right_larm", "left_larm", "right_shin1", "left_shin1"),
    "joint": ("uwaist", "lwaist", "right_hand", "left_hand", "right_foot", "left_foot"),
    "head": ("head",),
}
"""The geoms of each material. Limbs differ from the shell so that an arm in front of the torso is visible."""

_FOLDER = Path(__file__).parent / "textures"


class Humanoid(HumanoidEnv):
    """Gymnasium's Humanoid-v5 with `terminate_when_unhealthy=False`, bitwise, and a success criterion.

    `info["success"]` (bool) is whether the state after the action meets the criterion of `task`, a name in
    `humanoid_success.SUCCESS_CRITERIA`; without a task it is False. In the paper, an episode is a success if that holds
    in at least half of its steps. `textured` is whether sky, floor and skin are realistic.

    `start_near_goal` is the probability that an episode starts in a random interpolation between standing and the
    task's pose, instead of in Gymnasium's initial state: a curriculum for rewards that are flat far from the goal. For
    training only: evaluate agents from Gymnasium's initial state.
    """

    reference_camera = "paper"
    """The camera to which named sets of cameras are relative, such as "front-side"."""

    def __init__(
        self,
        render_mode: str | None = None,
        *,
        task: str | None = None,
        textured: bool = True,
        start_near_goal: float = 0.0,
    ) -> None:
        if task is not None:
            check_choice("task", task, SUCCESS_CRITERIA)
        check_flag("textured", textured)
        check_fraction("start_near_goal", start_near_goal)
        if start_near_goal and task is None:
            raise ValueError(
                f"`start_near_goal` needs a task, whose pose is known. Received {start_near_goal!r} without one. "
                f"Leave it out, or choose a task: {', '.join(SUCCESS_CRITERIA)}."
            )
        self.task, self.textured, self.start_near_goal = task, textured, start_near_goal
        super().__init__(terminate_when_unhealthy=False, render_mode=render_mode)

    def _initialize_simulation(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        if not self.textured:
            return super()._initialize_simulation()
        model = textured_model()
        return model, mujoco.MjData(model)

    def reset_model(self) -> np.ndarray:
        """Begin in Gymnasium's initial state, or on the way to the task's pose."""
        observation = super().reset_model()
        if self.start_near_goal and self.np_random.uniform() < self.start_near_goal:
            assert self.task is not None
            start = on_floor(interpolate_from_stand(self.task, self.np_random.uniform(size=1)))[0]
            self.set_state(start, self.data.qvel)
            observation = self._get_obs()
        return observation

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Apply torques for 0.015 s."""
        observation, reward, terminated, truncated, info = super().step(action)
        success = self.task is not None and bool(succeeds(self.task, self.data.qpos[None])[0])
        return observation, reward, terminated, truncated, {**info, "success": success}


def textured_model() -> mujoco.MjModel:
    """Gymnasium's humanoid with a cloudy sky, a tiled floor, robot skin and other lights; dynamics do not change."""
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
