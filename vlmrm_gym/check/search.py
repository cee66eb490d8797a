"""Search for states with high rewards although they fail: what an agent that maximises it may find.

Knows nothing about environments, rendering or models: arrays in, arrays out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.check.random_streams import Seed
from vlmrm_gym.validation import check_positive_integer

Rows = NDArray[np.float64]
"""States, float64 (N, S)."""

RUNS = 6
"""How many runs of CMA-ES share the states that a search makes, if none of them ends early."""
STEP = 0.7
"""Standard deviation of a run's first offsets."""
DISTANCE = 1.5
"""Distinct states differ in some value by more than this, in units of that value's spread among all states found."""


@dataclass(frozen=True, kw_only=True)
class Failures:
    """The failing states that a search has scored, the highest score first."""

    states: Rows
    """float64 (F, S)."""
    scores: NDArray[np.float64]
    """float64 (F,)."""

    @classmethod
    def best_first(cls, states: Rows, scores: NDArray[np.float64]) -> "Failures":
        """Sort states, float64 (N, S), by scores (N,), without those of minus infinity: they do not fail."""
        order = np.argsort(-scores, kind="stable")
        order = order[scores[order] > -np.inf]
        return cls(states=states[order], scores=scores[order])

    def distinct(self, count: int) -> Rows:
        """The best states that differ from one another by more than `DISTANCE`: float64 (at most count, S)."""
        return _distinct(self.states, count)


def search(
    score: Callable[[Rows], ArrayLike],
    is_failure: Callable[[Rows], ArrayLike],
    starts: ArrayLike,
    perturb: Callable[[Rows, NDArray[np.float64]], Rows],
    *,
    dimensions: int,
    evaluations: int,
    seed: Seed = 0,
) -> Failures:
    """Look for failing states with a high score, by CMA-ES with restarts (Hansen 2016, arXiv 1604.00772).

    The distinct ones of the starts are taken in turn, the highest scores first and those that do not fail last. From
    each, one run of CMA-ES varies the offsets that change the state, until it converges or has used its share of the
    evaluations. States that do not fail are never scored, and rank below all that do.

    Args:
        score: States, float64 (N, S), to numbers (N,): the reward.
        is_failure: States, float64 (N, S), to bool (N,): whether they fail the task.
        starts: float64 (P, S), failing or not.
        perturb: `(states, offsets)`, float64 (N, S) and (N, D), to changed states, float64 (N, S); must not write to
            its arguments.
        dimensions: D, at least 1.
        evaluations: How many states are looked at, the starts among them: no more than this.
        seed: The same seed gives the same result.

    Returns:
        Every failing state that was scored. Empty if there was none.

    Raises:
        ValueError: `starts` is empty, not two-dimensional or not finite, `dimensions` or `evaluations` is below 1, or
            one of the functions returns another shape or scores that are NaN.
    """
    import cma  # pyright: ignore[reportMissingImports] (extra "train")

    check_positive_integer("dimensions", dimensions)
    check_positive_integer("evaluations", evaluations)
    states = np.array(starts, dtype=np.float64)
    if states.ndim != 2 or 0 in states.shape or not np.isfinite(states).all():
        raise ValueError(
            f"`starts` must be finite numbers of shape (P, S), with at least one state. Received shape {states.shape}."
        )
    rng = np.random.default_rng(seed)
    states = states[:evaluations]
    scores = _score_failures(score, is_failure, states)
    seen = [(states, scores)]
    left = evaluations - len(states)
    share = left // RUNS
    for start in cycle(_distinct(states[np.argsort(-scores, kind="stable")])):
        # CMA-ES refuses one dimension; a second one that changes nothing costs little.
        strategy = cma.CMAEvolutionStrategy(np.zeros(max(2, dimensions)), STEP, random_options(rng))
        if left < strategy.popsize:
            break
        end = max(0, left - share)
        while left > end and left >= strategy.popsize and not strategy.stop():
            asked = strategy.ask()
            offsets = np.stack(asked)[:, :dimensions]
            repeated = np.repeat(start[None], len(offsets), axis=0)
            states = np.asarray(perturb(repeated, offsets), dtype=np.float64)
            if states.shape != repeated.shape:
                raise ValueError(f"`perturb` must return states of shape {repeated.shape}. Received {states.shape}.")
            scores = _score_failures(score, is_failure, states)
            seen.append((states, scores))
            strategy.tell(asked, list(_losses(scores)))
            left -= len(states)
    return Failures.best_first(*(np.concatenate(part) for part in zip(*seen, strict=True)))


def random_options(rng: np.random.Generator) -> dict[str, Any]:
    """Options of CMA-ES: it draws from this generator instead of NumPy's global one, and prints nothing."""
    return {"seed": np.nan, "randn": lambda *size: rng.standard_normal(size), "verbose": -9}


def _losses(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """What CMA-ES minimises, float64 (N,): worse than that of all that fail for what does not."""
    failing = np.isfinite(scores)
    worst = scores[failing].min() if failing.any() else 0.0
    return np.where(failing, -scores, 1.0 - worst)


def _distinct(states: Rows, count: int | None = None) -> Rows:
    """The first states that differ from one another by more than `DISTANCE`: float64 (at most count, S)."""
    if not len(states):
        return states
    spread = np.maximum(states.std(axis=0), 1e-6)
    kept: list[NDArray[np.float64]] = []
    for state in states:
        if all(np.abs((state - other) / spread).max() > DISTANCE for other in kept):
            kept.append(state)
        if len(kept) == count:
            break
    return np.stack(kept)


def _score_failures(
    score: Callable[[Rows], ArrayLike], is_failure: Callable[[Rows], ArrayLike], states: Rows
) -> NDArray[np.float64]:
    """The scores of states, float64 (N,); minus infinity for those that do not fail."""
    failing = np.asarray(is_failure(states))
    if failing.shape != (len(states),) or failing.dtype != bool:
        raise ValueError(
            f"`is_failure` must return bool of shape ({len(states)},). Received {failing.dtype}, {failing.shape}."
        )
    scores = np.full(len(states), -np.inf)
    if failing.any():
        own = np.asarray(score(states[failing]), dtype=np.float64)
        if own.shape != (failing.sum(),) or np.isnan(own).any():
            raise ValueError(
                f"`score` must return numbers of shape ({failing.sum()},), none of them NaN. "
                f"Received shape {own.shape}."
            )
        scores[failing] = own
    return scores
