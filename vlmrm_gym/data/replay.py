"""A replay buffer for rewards that arrive later than transitions. Needs no RL library; for single-file scripts."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from vlmrm_gym._util.steps import as_flags, check_final_observations, find_autoreset_mode
from vlmrm_gym._util.validation import (
    check_observation_space,
    check_positive_integer,
    check_reward_wrappers,
    is_array_space,
)
from vlmrm_gym.data.late import read_late
from vlmrm_gym.data.store import FeaturesDtype, TransitionStore, find_featured, flatten_field, unflatten_field
from vlmrm_gym.rewards.model import Head


@dataclass(frozen=True)
class Batch:
    """B transitions, as tensors on the buffer's device."""

    observations: Any
    """A tensor (B, ...). If observations are dictionaries, a dictionary of tensors with the same keys."""
    actions: torch.Tensor
    next_observations: Any
    """Like `observations`, of the state that the action led to; of the last state where it ended the episode."""
    rewards: torch.Tensor
    """float32 (B,)."""
    terminations: torch.Tensor
    """float32 (B,): 1 where the action terminated the episode. A time limit does not."""


class ReplayBuffer:
    """The newest transitions of a `VLMRewardVectorEnv`. Only transitions with rewards are sampled.

    A transition is pending until `infos["vlm_rewards"]` has its reward; with `scoring="step"` that is at once. Steps
    that only reset an environment are skipped. `reset` and `flush` return rewards, too: pass their infos to
    `add_rewards`. Transitions whose rewards were not passed on are dropped when rewards of later ones arrive.

    >>> import gymnasium as gym, vlmrm_gym
    >>> from vlmrm_gym.data.replay import ReplayBuffer
    >>> envs = gym.make_vec("VLMRM/CartPole-v1", num_envs=2, episode_length=10)
    >>> buffer = ReplayBuffer(1_000, envs)
    >>> observations, infos = envs.reset(seed=0)
    >>> for _ in range(10):
    ...     actions = envs.action_space.sample()
    ...     next_observations, rewards, terminations, truncations, infos = envs.step(actions)
    ...     buffer.add(observations, actions, next_observations, rewards, terminations, truncations, infos)
    ...     observations = next_observations
    >>> len(buffer), buffer.sample(4).rewards.shape
    (20, torch.Size([4]))

    Of environments with `return_features=True` it also keeps the features that rewards are made of, and the weighted
    task rewards, so that `relabel` can make all rewards anew. They are in the CPU's memory: V * D * 4 bytes a
    transition (with "float16" 2 bytes) for V views and D features, 10.2 GB for a million transitions of 2 views and
    1,280 features. The system gives the memory as the buffer fills.

    Args:
        capacity: Maximum number of transitions. When it is reached, new ones replace the oldest.
        envs: The environments. The action space must be a box or discrete; the observation space may also be a Dict of
            such spaces.
        device: Device of the storage and of the samples.
        seed: Seed of the sampling.
        features_dtype: How features are kept: "float32", or "float16" in half of the memory.
        autoreset_mode: When an environment that has ended is reset: needed if the metadata of `envs` do not say.

    Raises:
        ValueError: The capacity is below 1, or too high for the memory that its features would take; `envs` is not a
            vector environment, does not say when it resets, or has a wrapper that changes rewards; or a space is of
            another kind.
    """

    def __init__(
        self,
        capacity: int,
        envs: VectorEnv[Any, Any, Any],
        *,
        device: torch.device | str = "cpu",
        seed: int = 0,
        features_dtype: FeaturesDtype = "float32",
        autoreset_mode: AutoresetMode | str | None = None,
    ) -> None:
        check_positive_integer("capacity", capacity)
        self._same_step = find_autoreset_mode("envs", envs, autoreset_mode) == AutoresetMode.SAME_STEP
        check_reward_wrappers(envs)
        self.capacity, self.device = int(capacity), torch.device(device)
        observation_space, action_space = envs.single_observation_space, envs.single_action_space
        check_observation_space("envs.single_observation_space", observation_space)
        if not is_array_space(action_space):
            raise ValueError(f"`envs.single_action_space` must be a box or discrete space. Received {action_space}.")
        scalar = gym.spaces.Box(-np.inf, np.inf, ())
        spaces = {
            **flatten_field("observations", observation_space),
            "actions": action_space,
            **flatten_field("next_observations", observation_space),
            "terminations": scalar,
            "rewards": scalar,
        }
        featured = find_featured(envs)
        self._late = TransitionStore(
            self.capacity,
            "capacity",
            features_dtype,
            fields={name: self._allocate(space) for name, space in spaces.items()},
            num_envs=envs.num_envs,
            fingerprint="" if featured is None else featured.head.fingerprint,
            may_have_features=featured is not None,
        )
        if featured is not None and featured.feature_shape is not None:
            self._late.allocate(featured.feature_shape)
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def __len__(self) -> int:
        """Number of transitions that can be sampled."""
        return len(self._late)

    @property
    def num_pending(self) -> int:
        """Number of transitions that wait for their rewards."""
        return self._late.num_pending

    def add(
        self,
        observations: NDArray[Any] | Mapping[str, NDArray[Any]],
        actions: NDArray[Any],
        next_observations: NDArray[Any] | Mapping[str, NDArray[Any]],
        rewards: NDArray[np.float64],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        infos: Mapping[str, Any],
    ) -> None:
        """Add the transitions of a step, and store those whose rewards have arrived.

        `observations` are those that the policy acted on; all from `next_observations` on is what `envs.step` returned.
        Arrays are copied. The rewards that are stored are those in the infos.

        Raises:
            ValueError: `infos` was not returned by a `VLMRewardVectorEnv`, or lacks the last observation of an episode
                that ended; an array has not one element for each environment; or as `add_rewards`.
            RuntimeError: As `add_rewards`.
        """
        if "_vlm_step_index" not in infos:
            raise ValueError(
                f"`infos` must be what a VLMRewardVectorEnv returned. Received the keys {list(infos)}. Put "
                "VLMRewardVectorEnv around a vector of unscored environments."
            )
        num_envs = self._late.num_envs
        terminated = as_flags("`terminations`", terminations, num_envs)
        ends = terminated | as_flags("`truncations`", truncations, num_envs)
        step = {
            **flatten_field("observations", observations),
            "actions": actions,
            **flatten_field("next_observations", next_observations),
            "terminations": terminated,
        }
        step = {name: np.array(values) for name, values in step.items()}
        if self._same_step:  # an ended environment returned the first observation of its next episode
            check_final_observations(infos, ends)
            for i in np.flatnonzero(ends):
                for name, values in flatten_field("next_observations", infos["final_obs"][i]).items():
                    step[name][i] = values
        transitions = list(zip(*(step[name] for name in self._late.waiting_fields), strict=True))
        for i in np.flatnonzero(infos["_vlm_step_index"]).tolist():
            self._late.add(i, int(infos["vlm_step_index"][i]), transitions[i])
        self.add_rewards(infos)

    def add_rewards(self, infos: Mapping[str, Any]) -> None:
        """Add the rewards in the infos of `envs.flush()` or `envs.reset()`. `add` does so for those of a step.

        Raises:
            RuntimeError: A reward without features is not finite.
            ValueError: Features are not like those stored, or the head of the last `relabel` makes no rewards of them.
        """
        for late in read_late(infos):
            self._late.receive(late)

    def relabel(self, head: Head) -> None:
        """Make all rewards anew: that of a transition becomes `head(features)` plus its weighted task reward.

        Pending transitions get theirs when they arrive. Call this whenever the environments get another head:
        `envs.head.replace(head)`, then `buffer.relabel(envs.head)`. Until then what arrives keeps the rewards of the
        newer head, and `sample` raises an error rather than mix the two. Before the first call rewards are as they
        arrive. The head is not saved: after `load_state_dict` call this again, unless it was not called before.

        Args:
            head: Such as `envs.head`; or a callable from features, float32 (B, V, D) on the CPU, to rewards, float32
                (B,). It is kept, not copied: of a network that is still trained pass a copy.

        Raises:
            RuntimeError: The rewards have no features, or `envs.head` has no first version.
            ValueError: The head is of other features, raises, or returns another shape, NaN or infinity. The stored
                rewards are as before.
            TypeError: It cannot be called.
        """
        self._late.relabel(head)

    def sample(self, batch_size: int) -> Batch:
        """Sample transitions uniformly, with replacement.

        Raises:
            ValueError: `batch_size` is below 1.
            RuntimeError: No transition has its reward yet, or `relabel` has to be called first.
        """
        check_positive_integer("batch_size", batch_size)
        self._late.check_sample()
        i = torch.randint(len(self), (batch_size,), generator=self._generator, device=self.device)
        sampled = {name: self._late.columns[name][i] for name in (*self._late.waiting_fields, "rewards")}
        return Batch(**{field.name: unflatten_field(field.name, sampled) for field in fields(Batch)})

    def state_dict(self) -> dict[str, Any]:
        """The stored transitions and the sampler's state, for `torch.save`.

        The tensors are views, not copies: save them before the buffer changes. `torch.load` with `mmap=True` loads them
        without a copy in memory. Pending transitions are left out: environments that are made later do not return their
        rewards. So is the head of `relabel`.
        """
        columns = {name: _used(column, len(self)) for name, column in self._columns.items()}
        counts = {"stored": self._late.num_stored, "capacity": self.capacity}
        return {**columns, **counts, "generator": self._generator.get_state(), **self._late.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict` of a buffer with the same capacity, spaces and features. Drops pending transitions.

        Raises:
            ValueError: The capacity, a space, or the features differ. The buffer is empty then.
        """
        self._late.load(state, state["stored"], lambda name: [state[name].cpu()] if name in state else [])
        if len(state["generator"]) == len(self._generator.get_state()):  # else of another kind of device
            self._generator.set_state(state["generator"].cpu())

    @property
    def _columns(self) -> dict[str, torch.Tensor]:
        return {name: torch.as_tensor(column) for name, column in self._late.columns.items()}

    def _allocate(self, space: gym.Space[Any]) -> torch.Tensor:
        assert space.dtype is not None
        assert space.shape is not None
        dtype = torch.float32 if space.dtype.kind == "f" else torch.as_tensor(np.empty(0, space.dtype)).dtype
        return torch.empty((self.capacity, *space.shape), dtype=dtype, device=self.device)


def _used(column: torch.Tensor, count: int) -> torch.Tensor:
    """The first rows, without a copy. torch.save writes all memory behind a tensor: here it ends with the rows."""
    memory = column.untyped_storage()[: count * column[0].nbytes]
    rows = torch.empty(0, dtype=column.dtype, device=column.device)
    return rows.set_(source=memory, storage_offset=0, size=(count, *column.shape[1:]), stride=column.stride())
