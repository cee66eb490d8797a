"""Search for states with high rewards although they fail: what an agent that maximises it may find.

Knows nothing about environments, rendering or models: arrays in, arrays out. Imports NumPy only.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.check.random_streams import Seed
from vlmrm_gym.validation import check_positive_integer

Rows = NDArray[np.float64]
"""States, float64 (N, S)."""

RESTARTED = 0.25
"""Fraction of the lines of descent, the lowest scores, that continue from the highest scores in every round."""


@dataclass(frozen=True, kw_only=True)
class Failures:
    """The failing states that a search has scored, the highest score first."""

    states: Rows
    """float64 (F, S)."""
    scores: NDArray[np.float64]
    """float64 (F,)."""


def search(
    score: Callable[[Rows], ArrayLike],
    is_failure: Callable[[Rows], ArrayLike],
    population: ArrayLike,
    mutate: Callable[[Rows, np.random.Generator], Rows],
    *,
    rounds: int,
    seed: Seed = 0,
) -> Failures:
    """Look for failing states with a high score, by an evolution strategy with elitism.

    Every state of the population begins a line of descent. In each round the lowest quarter of the lines continues
    from the states of the highest quarter; then every state has one mutated child, which takes its place if it fails
    with at least the same score. States that do not fail are never scored, and give way to any child.

    Args:
        score: States, float64 (N, S), to numbers (N,): the reward.
        is_failure: States, float64 (N, S), to bool (N,): whether they fail the task.
        population: float (P, S), the initial states, failing or not.
        mutate: `(states, rng)` to as many changed states, float64 (N, S); must not write to its argument.
        rounds: How many rounds of mutation. At most `P * (1 + rounds)` states are scored.
        seed: The same seed gives the same result.

    Returns:
        Every failing state that was scored. Empty if there was none.

    Raises:
        ValueError: `population` is empty, not two-dimensional or not finite, `rounds` is below 1, or one of the
            functions returns another shape or scores that are NaN.
    """
    check_positive_integer("rounds", rounds)
    states = np.array(population, dtype=np.float64)
    if states.ndim != 2 or 0 in states.shape or not np.isfinite(states).all():
        raise ValueError(
            "`population` must be finite numbers of shape (P, S), with at least one state. "
            f"Received shape {states.shape}."
        )
    rng = np.random.default_rng(seed)
    scores = _score_failures(score, is_failure, states)
    seen = [(states.copy(), scores.copy())]
    restarted = int(RESTARTED * len(states))
    for _ in range(rounds):
        order = np.argsort(-scores, kind="stable")
        worst, best = order[len(order) - restarted :], order[:restarted]
        states[worst], scores[worst] = states[best], scores[best]
        children = np.asarray(mutate(states, rng), dtype=np.float64)
        if children.shape != states.shape:
            raise ValueError(f"`mutate` must return states of shape {states.shape}. Received {children.shape}.")
        child_scores = _score_failures(score, is_failure, children)
        seen.append((children, child_scores))
        better = child_scores >= scores
        states[better], scores[better] = children[better], child_scores[better]
    return _failures(seen)


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


def _failures(seen: list[tuple[Rows, NDArray[np.float64]]]) -> Failures:
    states, scores = (np.concatenate(part) for part in zip(*seen, strict=True))
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > -np.inf]
    return Failures(states=states[order], scores=scores[order])
