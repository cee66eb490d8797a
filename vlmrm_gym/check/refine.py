"""Climbing to the highest reward near states that a search has found, by CMA-ES (package `cma`)."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.check.random_streams import Seed
from vlmrm_gym.check.search import Failures, Rows


def refine(
    score: Callable[[Rows], ArrayLike],
    is_failure: Callable[[Rows], NDArray[np.bool_]],
    starts: Rows,
    perturb: Callable[[Rows, NDArray[np.float64]], Rows],
    *,
    dimensions: int,
    evaluations: int,
    step: float = 0.7,
    seed: Seed = 0,
) -> Failures:
    """Look near failing states for failing states with a higher score.

    From one start after the other, each with an equal share of the evaluations, CMA-ES (Hansen 2016, arXiv 1604.00772)
    varies the offsets that change the state.
    States that do not fail are never scored, and rank below all that do.

    Args:
        score: States, float64 (N, S), to numbers (N,): the reward.
        is_failure: States, float64 (N, S), to bool (N,).
        starts: float64 (P, S), failing states, the most promising first.
        perturb: `(states, offsets)`, float64 (N, S) and (N, D), to changed states, float64 (N, S).
        dimensions: D, at least 2.
        evaluations: How many states are made at most.
        step: Standard deviation of the first offsets.
        seed: The same seed gives the same result.

    Returns:
        Every failing state that was scored, the highest score first. Empty if there was none.
    """
    import cma  # pyright: ignore[reportMissingImports] (extra "train")

    rng = np.random.default_rng(seed)
    seen: list[tuple[Rows, NDArray[np.float64]]] = [(starts[:0], np.empty(0))]
    for start in starts:
        strategy = cma.CMAEvolutionStrategy(np.zeros(dimensions), step, random_options(rng))
        for _ in range(evaluations // (len(starts) * strategy.popsize)):
            offsets = np.stack(strategy.ask())
            states = perturb(np.repeat(start[None], len(offsets), axis=0), offsets)
            failing = is_failure(states)
            scores = np.full(len(states), -np.inf)
            if failing.any():
                scores[failing] = np.asarray(score(states[failing]), dtype=np.float64)
                seen.append((states[failing], scores[failing]))
            worst = scores[failing].min() if failing.any() else 0.0
            strategy.tell(list(offsets), list(np.where(failing, -scores, 1.0 - worst)))
    states, scores = (np.concatenate(part) for part in zip(*seen, strict=True))
    order = np.argsort(-scores, kind="stable")
    return Failures(states=states[order], scores=scores[order])


def random_options(rng: np.random.Generator) -> dict[str, Any]:
    """Options of CMA-ES: it draws from this generator instead of NumPy's global one, and prints nothing."""
    return {"seed": np.nan, "randn": lambda *size: rng.standard_normal(size), "verbose": -9}
