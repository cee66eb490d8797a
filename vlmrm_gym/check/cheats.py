"""The search for states that a reward pays although they fail."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.check.refine import refine
from vlmrm_gym.check.results import Cheat, CheatSearch
from vlmrm_gym.check.samples import Column, Samples
from vlmrm_gym.check.scene import Scene
from vlmrm_gym.check.search import Failures, search
from vlmrm_gym.check.task_states import TaskStates, is_wrong, mutate

LINES = 64
"""Lines of descent of a search."""
ROUNDS = 16
"""Rounds of mutation for each unit of effort."""
REFINED = 3
"""How many of the best distinct states CMA-ES starts from."""
REFINEMENTS = 600
"""States that CMA-ES makes for each unit of effort."""
SHOWN = 5
"""How many distinct states are shown."""


def find_cheats(
    scene: Scene, task: TaskStates, column: Column, samples: Samples, *, effort: int, seed: int
) -> tuple[CheatSearch, NDArray[np.float64]]:
    """Search for states that fail the task by more than a near miss, and are paid most.

    Without a judge: for the states that are paid most.

    Args:
        scene: Scores states.
        task: Its states.
        column: The reward.
        samples: States to begin with, and successes to compare with.
        effort: The search scores about 1,600 states times this.
        seed: The same seed gives the same result.

    Returns:
        What was found, and the states of the cheats that are shown, float64 (C, S).
    """
    failing = _failure(task)

    def score(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return column(scene.score(rows))

    rng = np.random.default_rng(seed)
    found = search(
        score,
        failing,
        _population(task, samples, column, rng),
        lambda rows, rng: mutate(task, rows, rng),
        rounds=ROUNDS * effort,
        seed=seed,
    )
    best = distinct(found, task, REFINED)
    refined = (
        refine(
            score, failing, best, task.perturb, dimensions=task.dimensions, evaluations=REFINEMENTS * effort, seed=seed
        )
        if task.dimensions > 1
        else Failures(states=best[:0], scores=np.empty(0))
    )
    every = _merge(found, refined)
    rows = distinct(every, task, SHOWN)
    rewards = score(rows) if len(rows) else np.empty(0)
    frames = scene.draw(rows) if len(rows) else []
    margins = task.margins(rows) if len(rows) else {}
    cheats = [
        Cheat(
            reward=float(rewards[i]), frames=frames[i], failed=_failed({name: own[i] for name, own in margins.items()})
        )
        for i in range(len(rows))
    ]
    true_rewards = np.empty(0) if samples.goals is None else column(samples.goals.rewards)
    return CheatSearch(
        judged=task.has_judge,
        cheats=cheats,
        true_rewards=true_rewards,
        true_frames=_median_success(scene, samples, true_rewards),
        near_miss=_near_miss(task, column, samples),
        scored=len(every.states),
    ), rows


def distinct(found: Failures, task: TaskStates, count: int) -> NDArray[np.float64]:
    """The best states that differ from one another: float64 (at most count, S).

    Two states are alike if no value differs by more than a quarter of that value's spread among all states found.
    """
    if not len(found.states):
        return found.states
    spread = np.maximum(found.states.std(axis=0), 1e-6)
    kept: list[NDArray[np.float64]] = []
    for state in found.states:
        if all(np.abs((state - other) / spread).max() > _DISTANCE for other in kept):
            kept.append(state)
        if len(kept) == count:
            break
    return np.stack(kept)


_DISTANCE = 1.5


def _failure(task: TaskStates) -> Callable[[NDArray[np.float64]], NDArray[np.bool_]]:
    if not task.has_judge:
        return lambda rows: np.ones(len(rows), dtype=bool)
    return lambda rows: is_wrong(task, rows)


def _population(task: TaskStates, samples: Samples, column: Column, rng: np.random.Generator) -> NDArray[np.float64]:
    """Half of them the best failing states seen so far, half any states."""
    any_states = task.sample(LINES, rng)
    seen = [any_states] if samples.around is None else [samples.around.states.rows]
    rewards = None if samples.around is None else column(samples.around.rewards)
    if rewards is None:
        return any_states
    rows = seen[0]
    failing = _failure(task)(rows)
    order = np.argsort(-np.where(failing, rewards, -np.inf), kind="stable")[: LINES // 2]
    return np.concatenate([rows[order], any_states[: LINES - len(order)]])


def _merge(first: Failures, second: Failures) -> Failures:
    states = np.concatenate([first.states, second.states])
    scores = np.concatenate([first.scores, second.scores])
    order = np.argsort(-scores, kind="stable")
    return Failures(states=states[order], scores=scores[order])


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
    near = ~task.succeeds(rows) & ~is_wrong(task, rows)
    return float(column(samples.around.rewards)[near].max()) if near.any() else None
