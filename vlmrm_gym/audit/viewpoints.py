"""From where a reward tells successes from failures best."""

import copy
from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.audit.results import AdversarialSearch, Viewpoint, Viewpoints
from vlmrm_gym.audit.rewards import RewardView
from vlmrm_gym.audit.samples import Samples
from vlmrm_gym.audit.scene import Scene
from vlmrm_gym.envs.states import TaskStates, fails_clearly
from vlmrm_gym.metrics import auc
from vlmrm_gym.rendering.cameras import make_camera, make_cameras
from vlmrm_gym.rendering.env_viewers import find_camera

AZIMUTHS = np.arange(0.0, 360.0, 45.0)
"""In degrees, relative to the first camera that is checked."""
ELEVATIONS = (-40.0, -10.0, 20.0)
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
    found: AdversarialSearch,
) -> Viewpoints:
    """Score successes and failures, the exploits among them, from cameras all around.

    Args:
        scene: The scene that is checked.
        make_scene: Makes a scene with other cameras.
        camera: The camera that is checked, or several: the first one is moved.
        reward: The reward.
        task: The states of the task; None if states cannot be made.
        samples: Successes and failures.
        found: The exploits.

    Returns:
        AUC from 24 viewpoints and the best pair of them; without these, why they were left out.
    """
    model = getattr(scene.env.unwrapped, "model", None)
    if not isinstance(model, mujoco.MjModel) or task is None or samples.around is None:
        return Viewpoints(left_out="Only MuJoCo environments whose states can be made are seen from other cameras.")
    if samples.goals is None or not samples.knows_success:
        return Viewpoints(
            left_out="Viewpoints are compared by successes and failures. No success is known, or only labels say so."
        )
    if scene.sees_views_together:
        return Viewpoints(left_out="The reward sees all views of a state at once, and so has none for a single view.")
    failures = samples.around.states.rows[fails_clearly(task, samples.around.states.rows)][-STATES:]
    if not len(failures):
        return Viewpoints(left_out="No state was found that fails the task by more than a near miss.")
    own = _first_camera(scene, model, camera)
    if own.type == mujoco.mjtCamera.mjCAMERA_FIXED:
        return Viewpoints(left_out="The camera is fixed in the environment's model, and cannot be moved around it.")
    goals = samples.goals.states.rows[:STATES]
    exploits = np.array([exploit.state for exploit in found.exploits]).reshape(-1, goals.shape[1])
    directions = list(product(ELEVATIONS, sorted(((own.azimuth + AZIMUTHS) % 360).tolist())))
    around = make_scene([_turned(own, azimuth, elevation) for elevation, azimuth in directions])
    try:
        rewards = reward.of_views(around.features(np.concatenate([goals, failures, exploits]))).astype(np.float64)
        pictures = around.draw(goals[:1])[0]
    finally:
        around.close()
    success = np.arange(len(rewards)) < len(goals)
    every = [
        Viewpoint(azimuth=azimuth, elevation=elevation, auc=auc(rewards[:, view], success), frame=pictures[view])
        for view, (elevation, azimuth) in enumerate(directions)
    ]
    wrong = rewards[-len(exploits) :] if len(exploits) else rewards[~success]
    (first, second), excess = _best_pair(rewards[success], wrong)
    rows = [every[start : start + len(AZIMUTHS)] for start in range(0, len(every), len(AZIMUTHS))]
    return Viewpoints(rows=rows, pair=(every[first], every[second]), pair_excess=excess)


def _best_pair(goals: NDArray[np.float64], wrong: NDArray[np.float64]) -> tuple[tuple[int, int], float]:
    """The two views whose minimum gives the best wrong state the lowest reward, relative to the median success."""
    excess = {
        (i, j): float(np.minimum(wrong[:, i], wrong[:, j]).max() - np.median(np.minimum(goals[:, i], goals[:, j])))
        for i, j in combinations(range(goals.shape[1]), 2)
    }
    pair = min(excess, key=lambda key: excess[key])
    return pair, excess[pair]


def _first_camera(scene: Scene, model: mujoco.MjModel, camera: Any) -> mujoco.MjvCamera:
    env = scene.env.unwrapped
    reference = getattr(env, "reference_camera", None)
    own = find_camera(env) if reference is None else make_camera(model, reference)
    return own if camera is None else make_cameras(model, camera, own)[0]


def _turned(camera: mujoco.MjvCamera, azimuth: float, elevation: float) -> mujoco.MjvCamera:
    turned = copy.copy(camera)
    turned.azimuth, turned.elevation = azimuth, elevation
    return turned
