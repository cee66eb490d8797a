"""One randomly drawn view for each state, the same however scoring is cut."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.scoring.scorer import MAX_STEPS, Keys

_INCREMENT, _MULTIPLIERS = np.uint64(0x9E3779B97F4A7C15), (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


ViewState = Sequence[tuple[int, int]]
"""For each environment its seed, and the number of steps since it was seeded."""


class RandomViews:
    """Draws a view for every transition: a hash of the environment's seed and of the steps since it was seeded.

    Args:
        num_views: Number of views to draw from.
        num_envs: Number of environments.
    """

    def __init__(self, num_views: int, num_envs: int = 1) -> None:
        self._num_views = num_views
        self._seeds = np.random.default_rng().integers(2**63, size=num_envs).astype(np.uint64)
        self._origins = np.zeros(num_envs, dtype=np.int64)

    def seed(self, seed: Any, num_stepped: NDArray[np.int64], mask: NDArray[np.bool_] | None = None) -> None:
        """Call this at every reset.

        Args:
            seed: As passed to `reset`. An integer seeds environment i with `seed + i`, as in Gymnasium; a sequence has
                one for each. None, also in a sequence, leaves the draws as they are.
            num_stepped: int64 (num_envs,): transitions of each environment so far.
            mask: bool (num_envs,): the environments that are reset. None: all.
        """
        if seed is None:
            return
        seeds = seed if isinstance(seed, Sequence | np.ndarray) else [seed + i for i in range(len(self._seeds))]
        for i, own in enumerate(seeds):
            if own is not None and (mask is None or mask[i]):
                self._seeds[i], self._origins[i] = np.uint64(int(own) % 2**64), num_stepped[i]

    def state(self, num_stepped: NDArray[np.int64]) -> ViewState:
        """What determines the next draws, after `num_stepped` transitions, int64 (num_envs,)."""
        return list(zip(self._seeds.tolist(), (num_stepped - self._origins).tolist(), strict=True))

    def restore(self, state: ViewState, num_stepped: NDArray[np.int64]) -> None:
        """Draw from now on as after `state` was taken.

        Raises:
            ValueError: It is the state of another number of environments.
        """
        if len(state) != len(self._seeds):
            raise ValueError(f"`state` must be of {len(self._seeds)} environments. Received {len(state)}.")
        for i, (seed, steps) in enumerate(state):
            self._seeds[i], self._origins[i] = np.uint64(seed % 2**64), num_stepped[i] - steps % MAX_STEPS

    def __call__(self, keys: Keys) -> NDArray[np.int64]:
        """The views of transitions, int64 (B,), by their keys, int64 (B,)."""
        env_index = keys // MAX_STEPS
        steps = (keys % MAX_STEPS - self._origins[env_index]).astype(np.uint64)
        return (_mix(_mix(self._seeds[env_index]) + steps) % np.uint64(self._num_views)).astype(np.int64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function (Steele et al. 2014): a well-mixed hash of 64-bit integers."""
    mixed = values + _INCREMENT  # wraps around
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MULTIPLIERS[0]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MULTIPLIERS[1]
    return mixed ^ (mixed >> np.uint64(31))
