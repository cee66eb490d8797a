"""Pictures of the registered tasks: where an episode begins, and what is asked for."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rendering.scene import Scene
from vlmrm_gym.tasks import Task
from vlmrm_gym.wrappers import make_world, take_worldly

TASK_POSES: Mapping[str, tuple[str, str]] = {
    "kneel": ("kneel", "loose"),
    "lotus": ("lotus", "loose"),
    "stand": ("stand", "down"),
    "arms-raised": ("stand", "raised"),
    "splits": ("splits", "out"),
    "hands-on-hips": ("stand", "on hips"),
    "arms-crossed": ("stand", "crossed"),
    "one-leg": ("one leg, left lifted", "out"),
}
"""Legs and arms of the humanoid that has done its task, as `vlmrm_gym.envs.humanoid_poses.pose` knows them."""


def draw_task(task: Task) -> NDArray[np.uint8]:
    """An initial state, and beside it one in which the task is done, if it has one: uint8 (H, W, 3)."""
    env = make_world(task.world, task.episode_length, "rgb_array", take_worldly(task.world, dict(task.options)))
    env.reset(seed=0)
    scene = Scene(env, task.options.get("camera"), "faithful")
    try:
        frames = scene.draw(np.stack([scene.capture(), *_goals(task)]))
    finally:
        scene.close()
        env.close()
    return np.concatenate(list(frames), axis=1)


def _goals(task: Task) -> Sequence[NDArray[np.float64]]:
    if task.world == "CartPole":
        return [np.zeros(2)]
    if task.world == "MountainCar":
        return [np.array([0.45])]
    from vlmrm_gym.envs.humanoid_poses import pose

    name = task.options["task"]
    return [] if name is None else [pose(*TASK_POSES[name])]
