"""Rewards in the canonical form of the EPIC distance: without what potential shaping can change.

EPIC (Gleave et al. 2021, arXiv 2006.13900, section 4) compares two rewards by the Pearson distance of their canonical
forms, with S and S' drawn from one distribution of states and A from one of actions, all independently:

    C(R)(s, a, s') = R(s, a, s') + E[gamma R(s', A, S') - R(s, A, S') - gamma R(S, A, S')]

>>> import numpy as np
>>> from vlmrm_gym.metrics import pearson_distance
>>> reward = np.random.default_rng(0).normal(size=(4, 2, 4))  # of state, action, next state
>>> potential = np.array([3.0, -1.0, 0.0, 2.0])
>>> shaped = 5 * reward + 0.9 * potential - potential[:, None, None]
>>> distance = pearson_distance(canonical_table(reward, gamma=0.9), canonical_table(shaped, gamma=0.9))
>>> round(distance, 6)
0.0

For rewards of states alone, R(s) or R(s'), the canonical form is R(s') up to scale and offset, whatever the
distributions (for R(s), if gamma is above 0). The EPIC distance is then `pearson_distance` of the two rewards of the
next states, and against success labels `vlmrm_gym.metrics.epic_distance` (VLM-RM, arXiv 2310.12921, appendix A).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.validation import check_fraction

Reward = Callable[[NDArray, NDArray, NDArray], ArrayLike]
"""States (N, ...), actions (N, ...), next states (N, ...) to rewards (N,)."""


def canonical_table(
    reward: ArrayLike,
    *,
    gamma: float,
    state_weights: ArrayLike | None = None,
    action_weights: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """The canonical form of a tabulated reward, computed exactly.

    Args:
        reward: float (S, A, S), finite: R(s, a, s').
        gamma: Discount, from 0 to 1.
        state_weights: float (S,), 0 or more: the distribution of S and of S', not necessarily normalised. Uniform if
            None.
        action_weights: float (A,), 0 or more: that of A. Uniform if None.

    Returns:
        float64 (S, A, S). What is left of it by rounding alone is 0: a reward that is nothing but shaping has the
        form 0.

    Raises:
        ValueError: Shapes do not fit, numbers are not finite, `gamma` is not from 0 to 1, or weights are negative or
            all 0.
    """
    check_fraction("gamma", gamma)
    table = np.asarray(reward, dtype=np.float64)
    if table.ndim != 3 or 0 in table.shape or table.shape[0] != table.shape[2] or not np.isfinite(table).all():
        raise ValueError(f"`reward` must be finite numbers of shape (S, A, S). Received shape {table.shape}.")
    of_states = _distribution("state_weights", state_weights, table.shape[0])
    of_actions = _distribution("action_weights", action_weights, table.shape[1])
    expected = np.einsum("iaj,a,j->i", table, of_actions, of_states)  # E[R(s, A, S')], by s
    canonical = table + gamma * expected - expected[:, None, None] - gamma * (of_states @ expected)
    return _without_rounding(canonical, table)


def canonical_samples(
    reward: Reward,
    states: ArrayLike,
    actions: ArrayLike,
    next_states: ArrayLike,
    *,
    gamma: float,
    mean_actions: ArrayLike,
    mean_states: ArrayLike,
) -> NDArray[np.float64]:
    """The canonical form of a reward at sampled transitions, with its expectations taken over samples.

    Shaping by a potential changes nothing for samples of any size, because both expectations that depend on the
    transition use the same ones. The last term is the same for all transitions, so no distance depends on it: instead
    of it, the mean is subtracted.

    Args:
        reward: Called 1 + M times, with N or 2 N transitions each.
        states: float (N, ...): the states of the transitions at which rewards are compared.
        actions: float (N, ...).
        next_states: float (N, ...).
        gamma: Discount, from 0 to 1.
        mean_actions: float (M, ...): samples of A.
        mean_states: float (M, ...): samples of S', drawn independently of `mean_actions`.

    Returns:
        float64 (N,), with the mean 0. What is left of it by rounding alone is 0.

    Raises:
        ValueError: Lengths differ or are 0, `gamma` is not from 0 to 1, or `reward` returns another shape or numbers
            that are not finite.
    """
    check_fraction("gamma", gamma)
    start, action, end = (np.asarray(array) for array in (states, actions, next_states))
    drawn = tuple(np.asarray(array) for array in (mean_actions, mean_states))
    _check_lengths(states=start, actions=action, next_states=end)
    _check_lengths(mean_actions=drawn[0], mean_states=drawn[1])
    both = np.concatenate([start, end])
    expected = np.zeros(len(both))
    for pair in zip(*drawn, strict=True):
        repeated = (np.broadcast_to(value, (len(both), *np.shape(value))) for value in pair)
        expected += _evaluate(reward, both, *repeated) / len(drawn[0])
    rewards = _evaluate(reward, start, action, end)
    canonical = rewards + gamma * expected[len(start) :] - expected[: len(start)]
    return _without_rounding(canonical - canonical.mean(), np.concatenate([rewards, expected]))


def _without_rounding(canonical: NDArray[np.float64], terms: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.abs(canonical) <= 1e-12 * np.abs(terms).max(), 0, canonical)


def _evaluate(reward: Reward, states: NDArray, actions: NDArray, next_states: NDArray) -> NDArray[np.float64]:
    rewards = np.asarray(reward(states, actions, next_states), dtype=np.float64)
    if rewards.shape != (len(states),) or not np.isfinite(rewards).all():
        raise ValueError(f"`reward` must return finite numbers of shape ({len(states)},). Received {rewards!r}.")
    return rewards


def _distribution(name: str, weights: ArrayLike | None, size: int) -> NDArray[np.float64]:
    array = np.ones(size) if weights is None else np.asarray(weights, dtype=np.float64)
    if array.shape != (size,) or not (np.isfinite(array).all() and (array >= 0).all() and array.any()):
        raise ValueError(
            f"`{name}` must be finite numbers of shape ({size},), 0 or more and not all 0. Received {weights!r}."
        )
    return array / array.sum()


def _check_lengths(**arrays: NDArray) -> None:
    lengths = [len(array) if array.ndim else 0 for array in arrays.values()]
    if len(set(lengths)) > 1 or not lengths[0]:
        names = ", ".join(f"`{name}`" for name in arrays)
        raise ValueError(f"{names} must have the same length, at least 1. Received lengths {lengths}.")
