"""Transitions that wait for their rewards: the core of the replay buffers. Needs no RL library."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Transition = tuple[Any, ...]
"""The fields of a transition: arrays without a batch dimension, and numbers."""
LATE = ("vlm_rewards", "vlm_scored", "vlm_features", "vlm_task_rewards", "vlm_reward_version")
"""The entries of infos that belong to transitions of earlier steps, too; see `vlmrm_gym.infos`."""


def late_fields(infos: Mapping[str, Any], i: int) -> dict[str, NDArray[Any]]:
    """What has arrived of an environment for T of its transitions: the entries in `LATE`, arrays (T, ...).

    Args:
        infos: Infos of a `VLMRewardVectorEnv`, with `vlm_rewards`.
        i: The environment, for which rewards have arrived.
    """
    found = {name: np.asarray(infos[name][i]) for name in LATE if name in infos}
    # The version is one number for all rewards that arrive together.
    return {name: np.full(len(found["vlm_rewards"]), own) if own.ndim == 0 else own for name, own in found.items()}


class PendingTransitions:
    """Transitions of several environments that wait for their rewards.

    Args:
        num_envs: Number of environments.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._pending: list[deque[tuple[int, Transition]]] = [deque() for _ in range(num_envs)]

    def __len__(self) -> int:
        """Number of pending transitions of all environments."""
        return sum(map(len, self._pending))

    def __iter__(self) -> Iterator[tuple[int, int, Transition]]:
        """Environment, step index and fields of every transition: environment by environment, oldest first."""
        for env_index, pending in enumerate(self._pending):
            for step_index, transition in pending:
                yield env_index, step_index, transition

    def add(self, env_index: int, step_index: int, transition: Transition) -> None:
        """Add a transition.

        Args:
            env_index: The environment, from 0.
            step_index: The transition's `vlm_step_index`; higher than those added before for this environment.
            transition: Kept, not copied.
        """
        self._pending[env_index].append((step_index, transition))

    def pop_rewarded(self, env_index: int, reward_start: int, *late: NDArray[Any]) -> list[Transition]:
        """Remove the transitions that these rewards belong to, and return them, oldest first.

        Transitions before `reward_start` are dropped: their rewards will not come any more. Rewards of transitions
        that were never added are ignored.

        Args:
            env_index: The environment, from 0.
            reward_start: The `vlm_step_index` of the transition that the first reward belongs to.
            late: Rewards (T,), and what else has arrived with them, (T, ...) each.

        Returns:
            The transitions, each with its rows of `late` as the last fields.
        """
        pending, rewarded = self._pending[env_index], []
        while pending and pending[0][0] < reward_start + len(late[0]):
            step_index, transition = pending.popleft()
            if step_index >= reward_start:
                rewarded.append((*transition, *(rows[step_index - reward_start] for rows in late)))
        return rewarded

    def clear(self) -> None:
        """Drop all transitions."""
        for pending in self._pending:
            pending.clear()


def flatten_field(name: str, value: Any) -> dict[str, Any]:
    """`{name: value}`; for a dictionary, one entry "name.key" for each key."""
    return {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, Mapping) else {name: value}


def unflatten_field(name: str, flat: Mapping[str, Any]) -> Any:
    """The reverse of `flatten_field`: the value of a field, from the flat entries of several fields."""
    if name in flat:
        return flat[name]
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in flat.items() if key.startswith(prefix)}
