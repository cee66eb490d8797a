"""Transitions that wait for their rewards: the core of the replay buffers. Needs no RL library."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

Transition = tuple[Any, ...]
"""The fields of a transition: arrays without a batch dimension, and numbers."""


class PendingTransitions:
    """Transitions of several environments that wait for their rewards.

    Args:
        num_envs: Number of environments.
    """

    def __init__(self, num_envs: int) -> None:
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

    def pop_rewarded(self, env_index: int, reward_start: int, rewards: NDArray[Any]) -> list[Transition]:
        """Remove the transitions that these rewards belong to, and return them, oldest first.

        Transitions before `reward_start` are dropped: their rewards will not come any more. Rewards of transitions
        that were never added are ignored.

        Args:
            env_index: The environment, from 0.
            reward_start: The `vlm_step_index` of the transition that the first reward belongs to.
            rewards: Rewards (T,) of any float dtype.

        Returns:
            The transitions, each with its reward as the last field.
        """
        pending, rewarded = self._pending[env_index], []
        while pending and pending[0][0] < reward_start + len(rewards):
            step_index, transition = pending.popleft()
            if step_index >= reward_start:
                rewarded.append((*transition, rewards[step_index - reward_start]))
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
