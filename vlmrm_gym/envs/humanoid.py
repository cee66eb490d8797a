"""The humanoid as the paper uses it: Gymnasium's, that may fall, with judges that know what a task asks for."""

from typing import Any

import mujoco
import numpy as np
from gymnasium.envs.mujoco.humanoid_v5 import HumanoidEnv

from vlmrm_gym.checks import check_choice, check_flag
from vlmrm_gym.envs.humanoid_body import XML
from vlmrm_gym.envs.humanoid_judges import JUDGES, succeeds
from vlmrm_gym.envs.humanoid_look import textured_model


class Humanoid(HumanoidEnv):
    """Gymnasium's Humanoid-v5 with `terminate_when_unhealthy=False`, to the bit, and a judge.

    `info["success"]` (bool) says whether the state that the action led to fulfils the task; see `humanoid_judges`. An
    episode is a success, in the paper's sense, when that holds in at least half of its steps.

    Args:
        render_mode: As in Gymnasium.
        task: The judge: a name in `humanoid_judges.JUDGES`, or None for none; success is then False.
        textured: Sky, floor and skin look realistic, or as Gymnasium's.
    """

    def __init__(self, render_mode: str | None = None, *, task: str | None = None, textured: bool = True) -> None:
        if task is not None:
            check_choice("task", task, JUDGES)
        check_flag("textured", textured)
        self.task, self.textured = task, textured
        super().__init__(terminate_when_unhealthy=False, render_mode=render_mode)

    def _initialize_simulation(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        if not self.textured:
            return super()._initialize_simulation()
        model = textured_model(str(XML))
        return model, mujoco.MjData(model)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Apply torques for 0.015 s."""
        observation, reward, terminated, truncated, info = super().step(action)
        success = self.task is not None and bool(succeeds(self.task, self.data.qpos[None])[0])
        return observation, reward, terminated, truncated, {**info, "success": success}
