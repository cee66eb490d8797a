"""Pictures of the registered tasks: an initial state and a goal state."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.capture import StateView
from vlmrm_gym.registration import make_base_env, split_env_kwargs
from vlmrm_gym.tasks import Task


def draw_task(task: Task, camera: Any = None) -> NDArray[np.uint8]:
    """An initial state, and a goal state if the task has one.

    Args:
        task: The registered task.
        camera: One camera or several, see `VLMReward`; for tasks that have a camera. None: the task's own.

    Returns:
        The goal state on the right: uint8 (H, W or 2 W, 3). The V views of several cameras are side by side, and the
        goal state is below: uint8 (H or 2 H, V W, 3).

    Raises:
        ValueError: A camera does not exist, or two are the same.
    """
    own = task.kwargs.get("camera")
    with ExitStack() as opened:
        env_kwargs = split_env_kwargs(task.env_cls, dict(task.kwargs))
        env = opened.enter_context(closing(make_base_env(task.env_cls, task.episode_length, "rgb_array", env_kwargs)))
        env.reset(seed=0)
        chosen = own if own is None or camera is None else camera
        scene = opened.enter_context(closing(StateView(env, chosen, "faithful")))
        frames = scene.draw(np.stack([scene.capture()[0], *_goal_states(task)]))
        return np.concatenate(list(frames), axis=0 if scene.num_views > 1 else 1)


def _goal_states(task: Task) -> Sequence[NDArray[np.float64]]:
    if task.env_cls == "CartPole":
        return [np.zeros(2)]
    if task.env_cls == "MountainCar":
        return [np.array([0.45])]
    from vlmrm_gym.envs.humanoid_poses import TASK_POSES, pose

    name = task.kwargs["task"]
    return [] if name is None else [pose(*TASK_POSES[name])]
