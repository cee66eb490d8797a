"""An evolution strategy with elitism, by which hard states were mined for the training of the bundled model.

Its mutations swap whole limbs between states, which the library's search (`vlmrm_gym.tools.check.exploits`) cannot do.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.tools.check.exploits import Failures, Rows

RESTARTED = 0.25
"""Fraction of the lines of descent, the lowest scores, that continue from the highest scores in every round."""


def evolve(
    score: Callable[[Rows], np.ndarray],
    is_failure: Callable[[Rows], NDArray[np.bool_]],
    population: Rows,
    mutate: Callable[[Rows, np.random.Generator], Rows],
    *,
    rounds: int,
    seed: int = 0,
) -> Failures:
    """Look for failing states with a high score.

    Every state of the population begins a line of descent. In each round the lowest quarter of the lines continues
    from the states of the highest quarter; then every state has one mutated child, which takes its place if it fails
    with at least the same score. States that do not fail are never scored, and give way to any child.

    Args:
        score: States, float64 (N, S), to numbers (N,): the reward.
        is_failure: States, float64 (N, S), to bool (N,): whether they fail the task.
        population: float64 (P, S), the initial states, failing or not.
        mutate: `(states, rng)` to as many changed states, float64 (N, S); must not write to its argument.
        rounds: How many rounds of mutation. At most `P * (1 + rounds)` states are scored.
        seed: The same seed gives the same result.

    Returns:
        Every failing state that was scored. Empty if there was none.
    """

    def score_failures(states: Rows) -> NDArray[np.float64]:
        failing = is_failure(states)
        scores = np.full(len(states), -np.inf)
        if failing.any():
            scores[failing] = score(states[failing])
        return scores

    rng = np.random.default_rng(seed)
    states, scores = population.copy(), score_failures(population)
    seen = [(states.copy(), scores.copy())]
    restarted = int(RESTARTED * len(states))
    for _ in range(rounds):
        order = np.argsort(-scores, kind="stable")
        worst, best = order[len(order) - restarted :], order[:restarted]
        states[worst], scores[worst] = states[best], scores[best]
        children = mutate(states, rng)
        child_scores = score_failures(children)
        seen.append((children, child_scores))
        better = child_scores >= scores
        states[better], scores[better] = children[better], child_scores[better]
    return Failures.best_first(*(np.concatenate(part) for part in zip(*seen, strict=True)))
