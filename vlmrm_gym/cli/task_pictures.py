"""Pictures of the registered tasks: an initial state and a goal state."""

from contextlib import ExitStack, closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.capture import StateView, choose_cameras, is_drawn_from_states
from vlmrm_gym.registration import make_base_env
from vlmrm_gym.tasks import Task


def draw_task(task: Task, camera: Any = None) -> NDArray[np.uint8]:
    """An initial state, and a goal state if the task has one.

    Args:
        task: The registered task.
        camera: One camera or several, see `VLMReward`; for environments that render from a chosen one. None: the task's
            own.

    Returns:
        The goal state on the right: uint8 (H, W or 2 W, 3). The V views of several cameras are side by side, and the
        goal state is below: uint8 (H or 2 H, V W, 3).

    Raises:
        ValueError: A camera does not exist, or two are the same.
    """
    with ExitStack() as opened:
        env = opened.enter_context(closing(make_base_env(task, task.episode_length)))
        env.reset(seed=0)
        has_camera = camera is not None and choose_cameras(env, camera) is not None
        scene = opened.enter_context(closing(StateView(env, camera if has_camera else task.camera, "faithful")))
        states, known = [scene.capture()[0]], task.make_states() if is_drawn_from_states(env) else None
        if known is not None and (goal := known.example_goal()) is not None:
            states.append(goal)
        return np.concatenate(list(scene.draw(np.stack(states))), axis=0 if scene.num_views > 1 else 1)
