"""States of the humanoid tasks: poses of `vlmrm_gym.envs.humanoid_poses`, and the conditions of success."""

from collections.abc import Mapping, Sequence

import numpy as np

from vlmrm_gym.envs.humanoid_body import Body, plain_model
from vlmrm_gym.envs.humanoid_poses import ARMS, LEGS, TASK_POSES, interpolate_from_stand, on_floor, pose
from vlmrm_gym.envs.humanoid_success import SUCCESS_CRITERIA, soft_success, succeeds, worst_margin
from vlmrm_gym.envs.mujoco_states import MuJoCoStates
from vlmrm_gym.envs.states import NEAR_MISS, Numbers, Rows, StatePath

_CANDIDATES = 4
"""How many poses are drawn for each of those that are close to the task and wrong."""


class HumanoidStates(MuJoCoStates):
    """`qpos`, float64 (N, 24).

    Args:
        task: A name in `SUCCESS_CRITERIA`; None: success is unknown.
    """

    def __init__(self, task: str | None) -> None:
        success_fn = None if task is None else lambda states: succeeds(task, states)
        super().__init__(plain_model(), pose()[None], success_fn)
        self._task = task

    def grade(self, states: Rows) -> Numbers | None:
        """`soft_success`: 1 for success."""
        return None if self._task is None else soft_success(self.margins(states).values())

    def margins(self, states: Rows) -> Mapping[str, Numbers]:
        """See `TaskStates`."""
        return {} if self._task is None else SUCCESS_CRITERIA[self._task](Body(states))

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """A third of them successes, a third wrong poses closest to the task, a third any poses."""
        if self._task is None:
            return near_poses(count, rng)
        third = count // 3
        parts = [self.goals(third, rng), closest_failures(self._task, third, rng), near_poses(count - 2 * third, rng)]
        return np.concatenate(parts)

    def goals(self, count: int, rng: np.random.Generator) -> Rows:
        """See `TaskStates`."""
        return near_poses(0, rng) if self._task is None else true_states(self._task, count, rng)

    def example_goal(self) -> Numbers | None:
        """The task's pose."""
        return None if self._task is None else pose(*TASK_POSES[self._task])

    def place(self, states: Rows) -> Rows:
        """The states with their lowest point on the floor, at the origin."""
        placed = states.copy()
        placed[:, :2] = 0
        return on_floor(placed)

    def on_the_way(self, fractions: Numbers) -> Rows | None:
        """Between standing and the task's pose."""
        return None if self._task is None else on_floor(interpolate_from_stand(self._task, fractions))

    def paths(self) -> Sequence[StatePath]:
        """From standing into the task's pose, and into the poses of all tasks as lines of one plot."""
        own = [] if self._task is None else [_path(f"From standing to {self._task}", self._task)]
        return [*own, *(_path("From standing into the poses of all tasks", task, line=task) for task in TASK_POSES)]


def _path(title: str, task: str, line: str | None = None) -> StatePath:
    shares = np.linspace(0, 1, 26)
    return StatePath(
        title=title,
        axis="way from the initial pose (%)",
        positions=100 * shares,
        states=on_floor(interpolate_from_stand(task, shares)),
        line=line,
    )


def near_poses(count: int, rng: np.random.Generator, degrees: float = 5.0) -> Rows:
    """Random combinations of the library's legs and arms, with normal noise on their joints, on the floor."""
    if not count:
        return np.empty((0, plain_model().nq))
    legs, arms = rng.choice(list(LEGS), count), rng.choice(list(ARMS), count)
    states = np.stack([pose(*names, yaw=rng.normal(0, 10)) for names in zip(legs, arms, strict=True)])
    states[:, 7:] += rng.normal(0, np.deg2rad(degrees), (count, 17))
    return on_floor(states)


def true_states(task: str, count: int, rng: np.random.Generator) -> Rows:
    """Library poses that succeed at a task, with noise of 3 degrees on their joints, and still succeed."""
    library = [(legs, arms) for legs in LEGS for arms in ARMS if succeeds(task, pose(legs, arms)[None])[0]]
    found = [np.empty((0, plain_model().nq))]
    while sum(map(len, found)) < count:
        chosen = rng.integers(len(library), size=count)
        states = np.stack([pose(*library[i], yaw=rng.normal(0, 10)) for i in chosen])
        states[:, 7:] += rng.normal(0, np.deg2rad(3), (count, 17))
        states = on_floor(states)
        found.append(states[succeeds(task, states)])
    return np.concatenate(found)[:count]


def closest_failures(task: str, count: int, rng: np.random.Generator) -> Rows:
    """Of many poses that fail a task by more than a near miss, those that are closest to it."""
    pool = near_poses(_CANDIDATES * max(count, 8), rng)
    margins = SUCCESS_CRITERIA[task](Body(pool)).values()
    wrong = worst_margin(margins) < -NEAR_MISS
    order = np.argsort(-soft_success(margins), kind="stable")
    return pool[order[wrong[order]]][:count]
