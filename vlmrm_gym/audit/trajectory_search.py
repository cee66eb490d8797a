"""Whether actions lead from an initial state to states that a search has found."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vlmrm_gym.audit.search import minimize, stream
from vlmrm_gym.capture import StateView
from vlmrm_gym.errors import InputError
from vlmrm_gym.rollouts.play import play

BLOCK = 10
"""Steps for which an action is repeated."""
CANDIDATES = 20
"""Of the failing states on the way, how many of those closest to the target are scored."""


def search_trajectories(
    env: gym.Env[Any, Any],
    view: StateView,
    target: NDArray[np.float64],
    spread: NDArray[np.float64],
    score: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    is_failure: Callable[[NDArray[np.float64]], NDArray[np.bool_]],
    *,
    steps: int,
    rollouts: int,
    seed: int,
    number: int = 0,
) -> float | None:
    """Look for actions that lead close to a state, by CMA-ES over constant actions.

    Args:
        env: The environment; its actions are a `Box` or `Discrete`.
        view: Captures its states.
        target: The state, float64 (S,).
        spread: Typical differences of each value of a state, float64 (S,); values with 0 do not count.
        score: States, float64 (N, S), to rewards (N,).
        is_failure: States, float64 (N, S), to bool (N,).
        steps: Length of a rollout.
        rollouts: The most rollouts that are played.
        seed: Of the initial state and of the search.
        number: Searches with the same seed and other numbers begin alike, and draw other random numbers.

    Returns:
        The highest reward of the failing states closest to the target that a rollout came to; None if none failed.

    Raises:
        InputError: The actions are neither a `Box` nor `Discrete`.
    """
    blocks, decode = -(-steps // BLOCK), action_decoder(env.action_space)
    size = int(np.prod(env.action_space.shape or (1,)))
    weights = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 1e-6)
    seen: list[tuple[float, NDArray[np.float64]]] = []

    def distance(genome: NDArray[np.float64]) -> float:
        actions = iter([decode(block) for block in genome.reshape(blocks, size) for _ in range(BLOCK)])
        rollout = play(env, view, lambda observation: next(actions), seed=seed, steps=steps, behaviour="search")
        rows = rollout.states.rows
        distances = np.linalg.norm((rows - target) * weights, axis=1)
        seen.extend((float(distances[i]), rows[i]) for i in np.flatnonzero(is_failure(rows)))
        seen.sort(key=lambda pair: pair[0])
        del seen[CANDIDATES:]
        return float(distances.min())

    minimize(
        lambda genomes: list(map(distance, genomes)),
        blocks * size,
        deviation=1.0,
        evaluations=rollouts,
        rng=np.random.default_rng(stream(seed, f"trajectories {number}")),
    )
    return float(score(np.stack([row for _, row in seen])).max()) if seen else None


def action_decoder(space: gym.Space[Any]) -> Callable[[NDArray[np.float64]], Any]:
    """A function from unbounded numbers, float64 (A,), 0 in the middle, to an action.

    Raises:
        InputError: The actions are neither a bounded `Box` nor `Discrete`.
    """
    if isinstance(space, spaces.Discrete):
        return lambda numbers: int(space.start + min(space.n - 1, np.floor(space.n * _squash(numbers[0]))))
    if isinstance(space, spaces.Box) and space.is_bounded():
        low, high, shape, dtype = space.low, space.high, space.shape, space.dtype
        return lambda numbers: (low + (high - low) * _squash(numbers).reshape(shape)).astype(dtype)
    rule = "`trajectory_search` needs actions that are a bounded Box or Discrete"
    raise InputError(f"{rule}. Received {space}. Leave it out.")


def _squash(numbers: Any) -> Any:
    return 1 / (1 + np.exp(-numbers))
