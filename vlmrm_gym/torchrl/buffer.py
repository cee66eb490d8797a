"""A replay buffer of TorchRL whose rewards arrive late."""

from collections import deque
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import EnvBase

from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.data.late import Late
from vlmrm_gym.data.store import TransitionStore, find_featured
from vlmrm_gym.rewards.model import Head
from vlmrm_gym.torchrl.env import VLMRewardEnv


class LateReplayBuffer(TensorDictReplayBuffer):
    """A replay buffer of TorchRL that takes transitions when their rewards have arrived. Until then they wait.

    With `return_features=True` stored rewards can be made anew by another head, see `relabel`.

    Args:
        env: A `VLMRewardEnv`, or transforms around one, that makes the transitions.
        capacity: Number of transitions with rewards.
        batch_size: Of `sample`.
        options: Of `TensorDictReplayBuffer`: `transform`, `prefetch`, ...
    """

    def __init__(self, env: EnvBase, capacity: int, *, batch_size: int, **options: Any) -> None:
        self._env = _find_env(env)
        featured, num_envs = find_featured(self._env.envs), self._env.batch_size[0]
        self._late = TransitionStore(
            capacity,
            "capacity",
            # The number of a transition, from 0 on, while it waits; then its slot in the storage of TorchRL.
            fields={"places": np.empty(capacity, np.int64), "rewards": np.empty(capacity, np.float32)},
            num_envs=num_envs,
            fingerprint="" if featured is None else featured.head.fingerprint,
            may_have_features=featured is not None,
        )
        self._num_added = self._num_written = 0
        """Transitions that have been added, and those with rewards that have been written into TorchRL's storage."""
        self._batches: deque[tuple[int, TensorDictBase]] = deque()
        """Transitions with numbers from one on, of which some wait."""
        self._last = np.full(num_envs, -1)
        """The highest step index of each environment's transitions so far."""
        self._unclaimed: list[Late] = []
        """Rewards of transitions that are not here yet."""
        super().__init__(storage=LazyTensorStorage(capacity), batch_size=batch_size, **options)

    @property
    def num_pending(self) -> int:
        """Number of transitions that wait for their rewards."""
        return self._late.num_pending

    @property
    def num_arrived(self) -> int:
        """Number of transitions that can be sampled: none where `relabel` has to be called before."""
        return len(self._late) if self._late.is_settled else 0

    def extend(self, tensordicts: TensorDictBase, **options: Any) -> torch.Tensor:
        """Add transitions, of any batch size, and store all whose rewards have arrived. Returns the slots of these."""
        flat = tensordicts.reshape(-1).clone()
        where = (flat["next", name].flatten().tolist() for name in ("vlm_env", "vlm_step_index"))
        for number, (i, step_index) in enumerate(zip(*where, strict=True), self._num_added):
            self._late.add(i, step_index, (number,))
            self._last[i] = step_index
        self._batches.append((self._num_added, flat))
        self._num_added += len(flat)
        return self.receive(**options)

    def add(self, data: TensorDictBase) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Add one transition, as `extend`."""
        return self.extend(data.unsqueeze(0))

    def receive(self, **options: Any) -> torch.Tensor:
        """Store the transitions whose rewards have arrived: after `env.flush()`. `extend` does it itself."""
        late_ones, self._unclaimed = [*self._unclaimed, *self._env.take_late()], []
        for late in late_ones:
            self._late.receive(late)
            if late.stop > self._last[late.env] + 1:
                self._unclaimed.append(late)
        places, capacity = self._late.columns["places"], self._late.capacity
        rows = np.arange(self._num_written, self._late.num_stored)[-capacity:] % capacity
        self._num_written = self._late.num_stored
        if not len(rows):
            return torch.empty(0, dtype=torch.int64)
        rows = rows[np.argsort(places[rows])]
        arrived = self._find(places[rows])
        arrived["next", "reward"] = torch.from_numpy(self._late.columns["rewards"][rows])[:, None]
        slots = super().extend(arrived, **options)
        places[rows] = slots.numpy()
        oldest = self._late.pending()["places"].min(initial=self._num_added)
        while self._batches and self._batches[0][0] + len(self._batches[0][1]) <= oldest:
            self._batches.popleft()
        return slots

    def _find(self, numbers: Any) -> TensorDictBase:
        """The transitions with these numbers, in order."""
        starts = [start for start, _ in self._batches]
        owners = np.searchsorted(starts, numbers, side="right") - 1
        parts: list[Any] = [self._batches[i][1][numbers[owners == i] - starts[i]] for i in np.unique(owners)]
        return torch.cat(parts)  # pyright: ignore[reportReturnType]

    def sample(self, *arguments: Any, **options: Any) -> Any:
        """Draw transitions. A RuntimeError: there is none with its reward, or `relabel` has to be called."""
        self._late.check_sample()
        return super().sample(*arguments, **options)

    def empty(self, *arguments: Any, **options: Any) -> None:
        """Remove all stored transitions. What waits is kept."""
        super().empty(*arguments, **options)
        self._late.num_stored = self._num_written = 0

    def relabel(self, head: Head) -> None:
        """Make all rewards with this head, such as `env.envs.head`; also those that arrive from now on.

        Raises as `vlmrm_gym.ReplayBuffer.relabel`.
        """
        self._late.relabel(head)
        if count := len(self._late):
            places, rewards = (torch.from_numpy(self._late.columns[name][:count]) for name in ("places", "rewards"))
            storage: Any = self._storage
            storage.get(slice(None))["next", "reward"][places] = rewards[:, None]


def _find_env(env: Any) -> VLMRewardEnv:
    while not isinstance(env, VLMRewardEnv):
        if (inner := getattr(env, "base_env", None)) is None or inner is env:
            raise TypeError(f"`env` must be a VLMRewardEnv, or transforms around one. Received {short_repr(env)}.")
        env = inner
    return env
