"""From where a reward tells successes from failures best."""

import copy
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.audit.results import Viewpoints
from vlmrm_gym.audit.rewards import RewardView
from vlmrm_gym.audit.samples import Samples
from vlmrm_gym.audit.scene import Scene
from vlmrm_gym.envs.states import TaskStates, fails_clearly
from vlmrm_gym.metrics import auc
from vlmrm_gym.rendering.cameras import make_cameras

AZIMUTHS = np.arange(0.0, 360.0, 45.0)
"""In degrees, relative to the first camera that is checked."""
ELEVATIONS = np.array([-40.0, -10.0, 20.0])
"""In degrees; negative looks down."""
STATES = 24
"""Successes, and as many failures."""


def compare_viewpoints(
    scene: Scene,
    make_scene: Callable[[Sequence[mujoco.MjvCamera]], Scene],
    camera: Any,
    reward: RewardView,
    task: TaskStates | None,
    samples: Samples,
    exploits: NDArray[np.float64],
    single_excess: float | None,
) -> Viewpoints:
    """Score successes and failures, the exploits among them, from cameras all around.

    Args:
        scene: The scene that is checked.
        make_scene: Makes a scene with other cameras.
        camera: The camera that is checked, or several: the first one is moved.
        reward: The reward.
        task: The states of the task; None if states cannot be made.
        samples: Successes and failures.
        exploits: States that fail and have high rewards, float64 (C, S).
        single_excess: The highest reward of an exploit minus the median reward of successes, under the camera that is
            checked; None if success is unknown.

    Returns:
        AUC from 24 viewpoints and the best pair of them; without these, why they were left out.
    """
    model = getattr(scene.env.unwrapped, "model", None)
    if not isinstance(model, mujoco.MjModel) or task is None:
        return Viewpoints(left_out="Only MuJoCo environments whose states can be made are seen from other cameras.")
    if samples.goals is None or samples.around is None or not task.has_success_fn:
        return Viewpoints(
            left_out="Viewpoints are compared by successes and failures. No success is known, or only labels say so."
        )
    if scene.sees_views_together:
        return Viewpoints(left_out="The reward sees all views of a state at once, and so has none for a single view.")
    failures = samples.around.states.rows[fails_clearly(task, samples.around.states.rows)][-STATES:]
    if not len(failures):
        return Viewpoints(left_out="No state was found that fails the task by more than a near miss.")
    own = _first_camera(scene.env, model, camera)
    if own.type == mujoco.mjtCamera.mjCAMERA_FIXED:
        return Viewpoints(left_out="The camera is fixed in the environment's model, and cannot be moved around it.")
    goals = samples.goals.states.rows[:STATES]
    rows = np.concatenate([goals, failures, exploits])
    around = make_scene([_moved(own, azimuth, elevation) for elevation in ELEVATIONS for azimuth in AZIMUTHS])
    try:
        rewards = reward.of_views(around.features(rows)).astype(np.float64)
        success = np.arange(len(rows)) < len(goals)
        scores = np.array([auc(rewards[:, view], success) for view in range(rewards.shape[1])])
        best, worst = int(scores.argmax()), int(scores.argmin())
        pictures = around.draw(goals[:1])[0]
    finally:
        around.close()
    wrong = rewards[len(goals) + len(failures) :] if len(exploits) else rewards[len(goals) :]
    pair, excess = _best_pair(rewards[: len(goals)], wrong)
    places = [
        (float((own.azimuth + azimuth) % 360), float(elevation)) for elevation in ELEVATIONS for azimuth in AZIMUTHS
    ]
    order = np.argsort((own.azimuth + AZIMUTHS) % 360)
    return Viewpoints(
        azimuths=((own.azimuth + AZIMUTHS) % 360)[order],
        elevations=ELEVATIONS,
        auc=scores.reshape(len(ELEVATIONS), len(AZIMUTHS))[:, order],
        best_frame=pictures[best],
        worst_frame=pictures[worst],
        pair=(places[pair[0]], places[pair[1]]),
        pair_excess=excess,
        single_excess=single_excess,
    )


def _best_pair(goals: NDArray[np.float64], wrong: NDArray[np.float64]) -> tuple[tuple[int, int], float]:
    """The two views whose minimum gives the best wrong state the lowest reward, relative to the median success."""
    excess = {
        (i, j): float(np.minimum(wrong[:, i], wrong[:, j]).max() - np.median(np.minimum(goals[:, i], goals[:, j])))
        for i, j in combinations(range(goals.shape[1]), 2)
    }
    pair = min(excess, key=lambda key: excess[key])
    return pair, excess[pair]


def _first_camera(env: gym.Env[Any, Any], model: mujoco.MjModel, camera: Any) -> mujoco.MjvCamera:
    from vlmrm_gym.capture.mujoco import find_camera
    from vlmrm_gym.rendering.cameras import make_camera

    reference = getattr(env.unwrapped, "reference_camera", None)
    own = find_camera(env.unwrapped) if reference is None else make_camera(model, reference)
    return own if camera is None else make_cameras(model, camera, own)[0]


def _moved(camera: mujoco.MjvCamera, azimuth: float, elevation: float) -> mujoco.MjvCamera:
    moved = copy.copy(camera)
    moved.azimuth, moved.elevation = camera.azimuth + azimuth, elevation
    return moved
