"""The search for states with high rewards although they fail."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.audit.prompts import Column
from vlmrm_gym.audit.results import Cheat, CheatSearch
from vlmrm_gym.audit.samples import Samples
from vlmrm_gym.audit.scene import Scene
from vlmrm_gym.audit.search import search
from vlmrm_gym.envs.states import TaskStates, fails_clearly
from vlmrm_gym.rollouts.random_streams import stream

STARTS = 64
"""States that a search begins with."""
EVALUATIONS = 1_700
"""States that a search looks at for each unit of effort, those it begins with among them."""
SHOWN = 5
"""How many distinct states are shown."""


def find_cheats(
    scene: Scene, task: TaskStates, column: Column, samples: Samples, *, effort: int, seed: int
) -> tuple[CheatSearch, NDArray[np.float64]]:
    """Search for states that fail the task by more than a near miss, and have the highest rewards.

    Without a judge: for the states with the highest rewards.

    Args:
        scene: Encodes and draws states.
        task: Its states.
        column: The reward.
        samples: States to begin with, and successes to compare with.
        effort: The search looks at 1,700 states times this.
        seed: The same seed gives the same result.

    Returns:
        What was found, and the states of the cheats that are shown, float64 (C, S).
    """

    def score(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return column(scene.features(rows))

    found = search(
        score,
        failure(task),
        first_states(task, samples, column, seed),
        task.perturb,
        dimensions=task.dimensions,
        evaluations=EVALUATIONS * effort,
        seed=stream(seed, "search"),
    )
    rows = found.distinct(SHOWN)
    true_rewards = np.empty(0) if samples.goals is None else column(samples.goals.features)
    return CheatSearch(
        judged=task.has_judge,
        cheats=_describe(scene, task, rows, score(rows)) if len(rows) else [],
        true_rewards=true_rewards,
        true_frames=_median_success(scene, samples, true_rewards),
        near_miss=_near_miss(task, column, samples),
        scored=len(found.states),
    ), rows


def _describe(
    scene: Scene, task: TaskStates, rows: NDArray[np.float64], rewards: NDArray[np.float64]
) -> Sequence[Cheat]:
    frames, margins = scene.draw(rows), task.margins(rows)
    return [
        Cheat(reward=float(reward), frames=frames[i], failed=_failed({name: own[i] for name, own in margins.items()}))
        for i, reward in enumerate(rewards)
    ]


def failure(task: TaskStates) -> Callable[[NDArray[np.float64]], NDArray[np.bool_]]:
    """What a search calls a failure: more than a near miss. Any state, if nothing judges them."""
    if not task.has_judge:
        return lambda rows: np.ones(len(rows), dtype=bool)
    return lambda rows: fails_clearly(task, rows)


def first_states(task: TaskStates, samples: Samples, column: Column, seed: int) -> NDArray[np.float64]:
    """What a search begins with: at most `STARTS` settled states, float64 (P, S).

    Half of them are the failing states with the highest rewards so far, the others the first that the task samples.
    """
    some = task.sample(STARTS, np.random.default_rng(stream(seed, "first states")))
    if samples.around is None:
        return _settled(task, some)
    rows = samples.around.states.rows
    scores = np.where(failure(task)(rows), column(samples.around.features), -np.inf)
    best = rows[np.argsort(-scores, kind="stable")[: STARTS // 2]]
    return _settled(task, np.concatenate([best, some[: STARTS - len(best)]]))


def _settled(task: TaskStates, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The states made possible, where they can be: with random noise, parts of a pose may be inside one another."""
    return task.perturb(rows, np.zeros((len(rows), task.dimensions)))


def _failed(margins: dict[str, np.float64]) -> dict[str, float]:
    """The conditions that are not met, with how far, the worst first."""
    return {
        name: -float(margin) for name, margin in sorted(margins.items(), key=lambda item: item[1]) if margin < -1e-9
    }


def _median_success(scene: Scene, samples: Samples, rewards: NDArray[np.float64]) -> NDArray[np.uint8] | None:
    if samples.goals is None:
        return None
    middle = int(np.argsort(rewards)[len(rewards) // 2])
    return scene.draw(samples.goals.states[middle : middle + 1])[0]


def _near_miss(task: TaskStates, column: Column, samples: Samples) -> float | None:
    if not task.has_judge or samples.around is None:
        return None
    rows = samples.around.states.rows
    near = ~task.succeeds(rows) & ~fails_clearly(task, rows)
    return float(column(samples.around.features)[near].max()) if near.any() else None
