"""A replay buffer of TorchRL whose rewards arrive late."""

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer, TensorDictRoundRobinWriter
from torchrl.data.replay_buffers.samplers import RandomSampler
from torchrl.envs import EnvBase

from vlmrm_gym._util.validation import as_array, short_repr
from vlmrm_gym.data.late import Late
from vlmrm_gym.data.store import find_featured, head_of_states
from vlmrm_gym.rewards.current_head import apply_head
from vlmrm_gym.rewards.model import Head
from vlmrm_gym.torchrl.env import VLMRewardEnv


class _ArrivedSampler(RandomSampler):
    """Draws rows that have their rewards, uniformly."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.arrived = torch.zeros(capacity, dtype=torch.bool)
        self._rows: torch.Tensor | None = None

    def mark(self, rows: torch.Tensor, arrived: bool) -> None:
        self.arrived[rows], self._rows = arrived, None

    def sample(self, storage: Any, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Draw rows, with replacement. A RuntimeError if no reward has arrived."""
        self._rows = self.arrived.nonzero().squeeze(1) if self._rows is None else self._rows
        if not len(self._rows):
            raise RuntimeError(
                "There is nothing to sample: all transitions wait for their rewards, which come when an episode ends. "
                "Collect at least one episode of every environment before."
            )
        return self._rows[torch.randint(len(self._rows), (batch_size,), generator=self._rng)], {}


class LateReplayBuffer(TensorDictReplayBuffer):
    """A replay buffer of TorchRL into which rewards are written when they arrive; only such transitions are sampled.

    A transition that waits has a slot and the slot's generation, of TorchRL's own writer; its reward is written if the
    slot has not been taken by another one since. With `return_features=True` stored rewards can be made anew by another
    head, see `relabel`.

    Args:
        env: A `VLMRewardEnv`, or transforms around one, that makes the transitions.
        capacity: Number of transitions.
        batch_size: Of `sample`.
        options: Of `TensorDictReplayBuffer`: `transform`, `prefetch`, ...
    """

    def __init__(self, env: EnvBase, capacity: int, *, batch_size: int, **options: Any) -> None:
        self._env = _find_env(env)
        self._rows = _ArrivedSampler(capacity)
        self._featured = find_featured(self._env.envs)
        self._head: Head | None = None
        self._version: int | None = None
        """Of the head that made the stored rewards; None: that of the next to arrive."""
        self.is_settled = True
        """Whether all stored rewards are of one head, the newest that has come; else `relabel` has to be called."""
        self._waiting = torch.empty(4, 0, dtype=torch.int64)
        """Environment, step index, slot and generation of transitions that wait, (4, W)."""
        self._last = torch.full(self._env.batch_size, -1)
        """The highest step index of each environment's transitions so far, (N,)."""
        self._unclaimed: list[Late] = []
        """Rewards of transitions that are not here yet."""
        super().__init__(
            storage=LazyTensorStorage(capacity),
            writer=TensorDictRoundRobinWriter(track_generations=True),
            sampler=self._rows,
            batch_size=batch_size,
            **options,
        )

    @property
    def num_pending(self) -> int:
        """Number of transitions that wait for their rewards."""
        return self._waiting.shape[1]

    @property
    def num_arrived(self) -> int:
        """Number of transitions that can be sampled."""
        return int(self._rows.arrived.sum())

    def extend(self, tensordicts: TensorDictBase, **options: Any) -> torch.Tensor:
        """Add transitions, of any batch size, and write the rewards that have arrived since. Returns their slots."""
        flat = tensordicts.reshape(-1).clone(recurse=False)  # entries are added, none is changed
        if self._featured is not None:
            shape = self._featured.scorer.info.feature_shape
            flat["vlm_features"] = torch.zeros(len(flat), *shape)
            flat["vlm_task_reward"] = torch.zeros(len(flat))
            flat["vlm_version"] = torch.full((len(flat),), -1)
        where = [flat["next", name].flatten() for name in ("vlm_env", "vlm_step_index")]
        self._last.scatter_reduce_(0, *where, reduce="amax")
        is_known = flat["next", "reward"].isfinite().flatten()
        slots = super().extend(flat, **options)
        self._rows.mark(slots, False)
        is_known &= self._featured is None  # else the features are yet to come
        self._rows.mark(slots[is_known], True)
        added = torch.stack([*where, slots, self._writer.generations_of(slots)])[:, ~is_known]
        self._waiting = torch.cat([self._waiting, added], dim=1)
        self.receive()
        return slots

    def sample(self, *arguments: Any, **options: Any) -> Any:
        """Draw transitions that have their rewards. A RuntimeError: there is none, or `relabel` has to be called."""
        if not self.is_settled:
            raise RuntimeError("Stored rewards are not all of the newest head. Call `relabel(env.envs.head)` first.")
        return super().sample(*arguments, **options)

    def receive(self) -> None:
        """Write the rewards that have arrived: after `env.flush()`. `extend` does it itself."""
        late_ones, self._unclaimed = [*self._unclaimed, *self._env.take_late()], []
        for late in late_ones:
            env, step, slots, generations = self._waiting
            own = (env == late.env) & (step >= late.start) & (step < late.stop)
            rows = (step[own] - late.start).numpy()
            if late.stop > self._last[late.env] + 1:
                self._unclaimed.append(late)
            self._write(slots[own], generations[own], late, rows)
            self._waiting = self._waiting[:, ~(own | ((env == late.env) & (step < late.start)))]

    def _write(self, slots: torch.Tensor, generations: torch.Tensor, late: Late, rows: Any) -> None:
        if not len(slots):
            return
        rewards, patch = late.rewards[rows], dict[Any, torch.Tensor]()
        if late.features is not None and late.task_rewards is not None and late.versions is not None:
            features, task_rewards, versions = late.features[rows], late.task_rewards[rows], late.versions[rows]
            self._version = int(versions.max()) if self._version is None else self._version
            is_other = versions != self._version if self._head is None else versions > self._version
            self.is_settled &= not is_other.any()
            if self._head is not None:
                rewards = apply_head(self._head, features, of=f"environment {late.env}") + task_rewards
            columns = {"vlm_features": features, "vlm_task_reward": task_rewards, "vlm_version": versions}
            patch |= {name: torch.from_numpy(column.copy()) for name, column in columns.items()}
        patch["next", "reward"] = torch.from_numpy(as_array(rewards).astype(np.float32))[:, None]
        written = self.update_if_present(index=slots, generation=generations, patch=TensorDict(patch, [len(slots)]))
        is_there = written.updated & torch.from_numpy(np.isfinite(rewards))
        self._rows.mark(slots[is_there], True)

    def relabel(self, head: Head) -> None:
        """Make all rewards with this head, such as `env.envs.head`; also those that arrive from now on.

        Raises:
            RuntimeError: There are no features, or the head has no first version.
            TypeError: It looks at sequences of states, which a buffer does not have.
            ValueError: It is of other features, or cannot make rewards of them.
        """
        if self._featured is None:
            raise RuntimeError("`relabel` needs features. Make the environments with return_features=True.")
        new, version = head_of_states(head, self._featured.head.fingerprint)
        if len(self):
            storage: Any = self._storage
            stored = storage.get(slice(len(self))).select("vlm_version", "vlm_features", "vlm_task_reward")  # views
            slots = (stored["vlm_version"] >= 0).nonzero().squeeze(1)
            own, generations = stored[slots], self._writer.generations_of(slots)
            rewards = apply_head(new, own["vlm_features"].numpy(), of="this buffer") + own["vlm_task_reward"].numpy()
            patch = TensorDict({("next", "reward"): torch.from_numpy(rewards)[:, None]}, [len(slots)])
            self.update_if_present(index=slots, generation=generations, patch=patch)
            self._rows.mark(slots, True)
        self._head, self._version, self.is_settled = new, version, True


def _find_env(env: Any) -> VLMRewardEnv:
    while not isinstance(env, VLMRewardEnv):
        if (inner := getattr(env, "base_env", None)) is None or inner is env:
            raise TypeError(f"`env` must be a VLMRewardEnv, or transforms around one. Received {short_repr(env)}.")
        env = inner
    return env
