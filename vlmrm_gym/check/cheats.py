"""The search for states with high rewards although they fail."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.check.prompts import Column
from vlmrm_gym.check.random_streams import stream
from vlmrm_gym.check.refine import refine
from vlmrm_gym.check.results import Cheat, CheatSearch
from vlmrm_gym.check.samples import Samples
from vlmrm_gym.check.scene import Scene
from vlmrm_gym.check.search import Failures, search
from vlmrm_gym.envs.states import TaskStates, fails_clearly, mutate

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
DISTANCE = 1.5
"""Distinct states differ in some value by more than this, in units of that value's spread among all states found."""


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
        effort: The search scores about 1,600 states times this.
        seed: The same seed gives the same result.

    Returns:
        What was found, and the states of the cheats that are shown, float64 (C, S).
    """

    def score(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return column(scene.features(rows))

    found = _search(task, score, first_states(task, samples, column, seed), effort, seed)
    rows = distinct(found, SHOWN)
    true_rewards = np.empty(0) if samples.goals is None else column(samples.goals.features)
    return CheatSearch(
        judged=task.has_judge,
        cheats=_describe(scene, task, rows, score(rows)) if len(rows) else [],
        true_rewards=true_rewards,
        true_frames=_median_success(scene, samples, true_rewards),
        near_miss=_near_miss(task, column, samples),
        scored=len(found.states),
    ), rows


def _search(
    task: TaskStates,
    score: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    population: NDArray[np.float64],
    effort: int,
    seed: int,
) -> Failures:
    """An evolution strategy, then CMA-ES from the best states that it found."""
    failing = failure(task)
    found = search(
        score,
        failing,
        population,
        lambda rows, rng: mutate(task, rows, rng),
        rounds=ROUNDS * effort,
        seed=stream(seed, "evolution strategy"),
    )
    if task.dimensions < 2 or not len(found.states):
        return found  # CMA-ES needs two dimensions
    refined = refine(
        score,
        failing,
        distinct(found, REFINED),
        task.perturb,
        dimensions=task.dimensions,
        evaluations=REFINEMENTS * effort,
        seed=stream(seed, "CMA-ES"),
    )
    states, scores = np.concatenate([found.states, refined.states]), np.concatenate([found.scores, refined.scores])
    order = np.argsort(-scores, kind="stable")
    return Failures(states=states[order], scores=scores[order])


def _describe(
    scene: Scene, task: TaskStates, rows: NDArray[np.float64], rewards: NDArray[np.float64]
) -> Sequence[Cheat]:
    frames, margins = scene.draw(rows), task.margins(rows)
    return [
        Cheat(reward=float(reward), frames=frames[i], failed=_failed({name: own[i] for name, own in margins.items()}))
        for i, reward in enumerate(rewards)
    ]


def distinct(found: Failures, count: int) -> NDArray[np.float64]:
    """The best states that differ from one another by more than `DISTANCE`: float64 (at most count, S)."""
    if not len(found.states):
        return found.states
    spread = np.maximum(found.states.std(axis=0), 1e-6)
    kept: list[NDArray[np.float64]] = []
    for state in found.states:
        if all(np.abs((state - other) / spread).max() > DISTANCE for other in kept):
            kept.append(state)
        if len(kept) == count:
            break
    return np.stack(kept)


def failure(task: TaskStates) -> Callable[[NDArray[np.float64]], NDArray[np.bool_]]:
    """What a search calls a failure: more than a near miss. Any state, if nothing judges them."""
    if not task.has_judge:
        return lambda rows: np.ones(len(rows), dtype=bool)
    return lambda rows: fails_clearly(task, rows)


def first_states(task: TaskStates, samples: Samples, column: Column, seed: int) -> NDArray[np.float64]:
    """What a search begins with: at most `LINES` settled states, float64 (P, S).

    Half of them are the failing states with the highest rewards so far, the others the first that the task samples.
    """
    some = task.sample(LINES, np.random.default_rng(stream(seed, "first states")))
    if samples.around is None:
        return _settled(task, some)
    rows = samples.around.states.rows
    scores = np.where(failure(task)(rows), column(samples.around.features), -np.inf)
    best = rows[np.argsort(-scores, kind="stable")[: LINES // 2]]
    return _settled(task, np.concatenate([best, some[: LINES - len(best)]]))


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
