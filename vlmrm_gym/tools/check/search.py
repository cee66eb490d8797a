"""Searches for failing states with high rewards: what an agent that maximises it may find.

Knows nothing about environments, rendering or models: arrays in, arrays out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Rows = NDArray[np.float64]
"""States, float64 (N, S)."""
Scored = tuple[Rows, NDArray[np.float64]]
"""States, float64 (N, S), and their scores (N,); minus infinity for those that do not fail."""

RUNS = 8
"""How many runs of CMA-ES share the states that a search makes, if none of them ends early."""
STEPS = (4.0, 2.0, 1.0, 0.5)
"""Standard deviations of the first offsets of successive runs, which begin at a start and at one of the best states
found in turn; then from the beginning again."""
DISTANCE = 1.5
"""Distinct states differ in some value by more than this, in units of that value's spread among all states found."""


@dataclass(frozen=True, kw_only=True)
class Failures:
    """The failing states that a search has scored, float64 (F, S) and (F,), the highest score first."""

    states: Rows
    scores: NDArray[np.float64]

    @classmethod
    def best_first(cls, states: Rows, scores: NDArray[np.float64]) -> "Failures":
        """Sort states, float64 (N, S), by scores (N,), without those of minus infinity: they do not fail."""
        order = np.argsort(-scores, kind="stable")
        order = order[scores[order] > -np.inf]
        return cls(states=states[order], scores=scores[order])

    def distinct(self, count: int) -> Rows:
        """Find the best states that differ from one another by more than `DISTANCE`: float64 (at most count, S)."""
        if not len(self.states):
            return self.states
        kept: list[NDArray[np.float64]] = []
        spread = _spread(self.states)
        for state in self.states:
            if len(kept) < count and _differs(state[None], kept, spread)[0]:
                kept.append(state)
        return np.stack(kept)


def search(
    score: Callable[[Rows], ArrayLike],
    is_failure: Callable[[Rows], ArrayLike],
    starts: ArrayLike,
    perturb: Callable[[Rows, NDArray[np.float64]], Rows],
    *,
    dimensions: int,
    evaluations: int,
    seed: int | np.random.SeedSequence = 0,
) -> Failures:
    """Look for failing states with a high score, by CMA-ES with restarts (Hansen 2016, arXiv 1604.00772).

    Runs of CMA-ES begin in turn at the best of the starts, float64 (P, S), and at the best of all states found so far,
    each time at one that is distinct from those where earlier runs began. A run varies the D offsets by which `perturb`
    changes this state, each with a standard deviation of its own, until it converges or has used its share of the
    `evaluations`, the most states that are looked at, starts included. `score` and `is_failure` map states (N, S) to
    (N,). States that do not fail are never scored, and rank below all that do. Every failing state is returned.
    """
    import cma  # pyright: ignore[reportMissingImports] (extra "train")

    rng = np.random.default_rng(seed)
    seen: list[Scored] = []

    def look_at(states: Rows) -> NDArray[np.float64]:
        """Compute the loss that CMA-ES minimises, float64 (N,): states that do not fail lose to all that do."""
        failing = np.asarray(is_failure(states))
        scores = np.full(len(states), -np.inf)
        if failing.any():
            scores[failing] = score(states[failing])
        seen.append((states, scores))
        worst = scores[failing].min() if failing.any() else 0.0
        return np.where(failing, -scores, 1.0 - worst)

    states = np.array(starts, dtype=np.float64)[:evaluations]
    look_at(states)
    left = evaluations - len(states)
    population = 4 + int(3 * np.log(max(2, dimensions)))  # Hansen's formula
    share = max(left // RUNS, population)
    # The covariance is diagonal: a full one would take longer to adapt than a run lasts. Without a seed and with these
    # numbers NumPy's global generator stays as it is.
    options = {"seed": np.nan, "randn": lambda *size: rng.standard_normal(size)}
    options |= {"CMA_diagonal": True, "popsize": population, "verbose": -9}
    begun: list[NDArray[np.float64]] = []
    runs = 0
    while left >= population:
        start = _next_start(*_join(seen if runs % 2 else seen[:1]), begun)
        # CMA-ES refuses one dimension; a second one that changes nothing costs little.
        strategy = cma.CMAEvolutionStrategy(np.zeros(max(2, dimensions)), STEPS[runs % len(STEPS)], options)
        end = max(left - share, 0)
        while left - population >= end and not strategy.stop():
            proposals = strategy.ask()
            offsets = np.stack(proposals)[:, :dimensions]
            strategy.tell(proposals, list(look_at(perturb(np.repeat(start[None], population, axis=0), offsets))))
            left -= population
        runs += 1
    return Failures.best_first(*_join(seen))


def stream(seed: int, part: str) -> np.random.SeedSequence:
    """Derive the seed of the random numbers of one part, by its name, which are independent of those of others."""
    return np.random.SeedSequence([seed, *part.encode()])


def _join(seen: Sequence[Scored]) -> Scored:
    return np.concatenate([states for states, _ in seen]), np.concatenate([scores for _, scores in seen])


def _next_start(states: Rows, scores: NDArray[np.float64], begun: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Choose the best state that is distinct from those where runs have begun, float64 (S,); noted in `begun`.

    If there is none, all are forgotten, and it is the best state.
    """
    ranked = states[np.argsort(-scores, kind="stable")]
    differing = np.flatnonzero(_differs(ranked, begun, _spread(ranked)))
    if not len(differing):
        begun.clear()
    start = ranked[differing[0] if len(differing) else 0]
    begun.append(start)
    return start


def _differs(states: Rows, others: Sequence[NDArray[np.float64]], spread: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Find which states are distinct from all others: bool (N,)."""
    differing = np.ones(len(states), dtype=bool)
    for other in others:
        differing &= np.abs((states - other) / spread).max(axis=1) > DISTANCE
    return differing


def _spread(states: Rows) -> NDArray[np.float64]:
    """Measure how much each value varies, at least a little: float64 (S,)."""
    return np.maximum(states.std(axis=0), 1e-6)
