"""TorchRL (needs the extra "torchrl"): scored environments, and a replay buffer whose rewards arrive late.

>>> from vlmrm_gym.torchrl import LateReplayBuffer, make_env
>>> env = make_env("VLMRM/CartPole-v1", num_envs=2, seed=0, episode_length=10)
>>> buffer = LateReplayBuffer(env, 1_000, batch_size=16)
>>> for _ in range(2):
...     index = buffer.extend(env.rollout(10, auto_reset=True, break_when_any_done=False))
>>> buffer.sample()["next", "reward"].isfinite().all().item()
True
>>> env.close()
"""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from tensordict import TensorDict, TensorDictBase
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    LazyTensorStorage,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    Unbounded,
)
from torchrl.data.replay_buffers.samplers import RandomSampler
from torchrl.envs import EnvBase

from vlmrm_gym._util.errors import close_on_error
from vlmrm_gym._util.steps import VectorSteps
from vlmrm_gym._util.validation import as_array, check_integer, short_repr
from vlmrm_gym.data.late import Late, read_late
from vlmrm_gym.data.store import find_featured, head_of_states
from vlmrm_gym.envs.make import make_vector_env
from vlmrm_gym.infos import read_success
from vlmrm_gym.rewards.current_head import apply_head
from vlmrm_gym.rewards.model import Head

INFOS = {"vlm_env": torch.int64, "vlm_step_index": torch.int64, "task_reward": torch.float32, "success": torch.float32}
"""Entries of steps beside those of TorchRL: of which environment and transition they are, the environment's own reward,
and whether the state succeeds (NaN: not known); (N, 1) each."""
ENDS = ("done", "terminated", "truncated")


class VLMRewardEnv(EnvBase):
    """Makes a `VLMRewardVectorEnv` an environment of TorchRL, of batch size (num_envs,).

    Where an episode ends, `("next", "observation")` is its true last one; time limits are `truncated`. A reward is NaN
    until it arrives, which `LateReplayBuffer` waits for; with `scoring="step"` it is there at once. Collect in this
    process: scoring has workers of its own.

    Args:
        envs: A `VLMRewardVectorEnv`, or wrappers around one, that leaves resets to others: made with
            `autoreset_mode="Disabled"`.

    Raises:
        ValueError: It has another autoreset mode, or observations or actions that are neither boxes, discrete nor a
            flat Dict of such.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        self._steps = VectorSteps("envs", envs, None)
        if self._steps.mode != AutoresetMode.DISABLED:
            raise ValueError(
                "`envs` must leave resets to TorchRL. Received "
                f'{self._steps.mode.value!r}. Make them with autoreset_mode="Disabled".'
            )
        super().__init__(device=torch.device("cpu"), batch_size=torch.Size([envs.num_envs]))
        self.envs = envs
        self._next_seed: int | None = None
        self._late: list[Late] = []
        space, count = envs.single_observation_space, envs.num_envs
        self._is_dict = isinstance(space, spaces.Dict)
        own = dict(space.spaces) if isinstance(space, spaces.Dict) else {"observation": space}
        infos = {name: Unbounded((count, 1), dtype=dtype) for name, dtype in INFOS.items()}
        observed = {name: _as_spec(one, count) for name, one in own.items()}
        self.observation_spec = Composite({**observed, **infos}, shape=self.batch_size)
        self.action_spec = _as_spec(envs.single_action_space, count)
        self.reward_spec = Unbounded((count, 1), dtype=torch.float32)
        flag = Binary(1, shape=(count, 1), dtype=torch.bool)
        self.full_done_spec = Composite({name: flag.clone() for name in ENDS}, shape=self.batch_size)

    def take_late(self) -> list[Late]:
        """Take the rewards that have arrived since the last call."""
        late, self._late = self._late, []
        return late

    def flush(self) -> None:
        """Score all pending states, those of unfinished episodes too; see `VLMRewardVectorEnv.flush`."""
        self._late += read_late(self.envs.flush())  # pyright: ignore[reportAttributeAccessIssue]

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        options = None if mask is None else {"reset_mask": mask.reshape(self.batch_size[0], -1).any(1).numpy()}
        seed, self._next_seed = self._next_seed, None
        observations, infos, _ = self._steps.reset(seed, options)
        self._late += read_late(infos)
        nothing = np.zeros(self.batch_size, np.float32)
        ends = {name: np.zeros(self.batch_size, bool) for name in ENDS}
        indices = np.full(self.batch_size, -1)
        return self._pack(observations, vlm_step_index=indices, task_reward=nothing, success=nothing * np.nan, **ends)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        step = self._steps.step(tensordict["action"].cpu().numpy())
        self._late += read_late(step.infos)
        return self._pack(
            step.observations,
            vlm_step_index=step.infos["vlm_step_index"],
            task_reward=step.infos["task_reward"],
            success=read_success(step.infos, self.batch_size[0]),
            reward=step.rewards,
            terminated=step.terminations,
            truncated=step.truncations,
            done=step.terminations | step.truncations,
        )

    def _pack(self, observations: Any, **columns: Any) -> TensorDict:
        """Make the tensors of a step, copies, of observations and columns (N,)."""
        own = observations if self._is_dict else {"observation": observations}
        columns["vlm_env"] = np.arange(self.batch_size[0])
        rows = {name: torch.as_tensor(np.array(value))[:, None] for name, value in columns.items()}
        rows = {name: one.float() if one.is_floating_point() else one for name, one in rows.items()}
        return TensorDict(
            {**{name: torch.as_tensor(np.array(one)) for name, one in own.items()}, **rows}, self.batch_size
        )

    def _set_seed(self, seed: int | None) -> None:
        self._next_seed = seed

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the environments."""
        super().close(raise_if_closed=raise_if_closed)
        self.envs.close()


def _as_spec(space: gym.Space[Any], count: int) -> Any:
    """Make the spec of so many elements of a space."""
    if isinstance(space, spaces.Box):
        shape, dtype = (count, *space.shape), torch.as_tensor(np.empty(0, space.dtype)).dtype
        if not space.is_bounded():
            return Unbounded(shape, dtype=dtype)
        low, high = (torch.as_tensor(np.broadcast_to(bound, shape).copy()) for bound in (space.low, space.high))
        return Bounded(low, high, shape, dtype=dtype)
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return Categorical(int(space.n), shape=(count,), dtype=torch.int64)
    rule = "`envs` must have boxes and discrete spaces that begin at 0, or a flat Dict of such as observations"
    raise ValueError(f"{rule}. Received {space}. Wrap them.")


def make_env(
    env_id: str | Callable[..., gym.Env[Any, Any]], num_envs: int = 1, *, seed: int | None = None, **kwargs: Any
) -> VLMRewardEnv:
    """Make scored environments for TorchRL, of any registered ID, or of what a class or a function makes.

    `kwargs` are as of `vlmrm_gym.sb3.make_vec_env`; `seed` is of the first environment.
    """
    if seed is not None:
        check_integer("seed", seed, minimum=0)
    envs = make_vector_env(env_id, num_envs, autoreset_mode="Disabled", **kwargs)
    with close_on_error([envs]):
        env = VLMRewardEnv(envs)
        if seed is not None:
            env.set_seed(seed)
    return env


class _ArrivedSampler(RandomSampler):
    """Draws rows that have their rewards, uniformly."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.arrived = torch.zeros(capacity, dtype=torch.bool)
        self._rows: torch.Tensor | None = None

    def mark(self, rows: torch.Tensor, arrived: bool) -> None:
        """Say whether rows have their rewards."""
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
        flat = tensordicts.reshape(-1).clone()
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
            features, task_rewards = late.features[rows], late.task_rewards[rows]
            if self._head is not None:
                rewards = apply_head(self._head, features, of=f"environment {late.env}") + task_rewards
            patch = {
                "vlm_features": torch.from_numpy(features.copy()),
                "vlm_task_reward": torch.from_numpy(task_rewards.copy()),
            }
            patch["vlm_version"] = torch.from_numpy(np.asarray(late.versions[rows], dtype=np.int64).copy())
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
        self._head, version = head_of_states(head, self._featured.head.fingerprint)
        if not len(self):
            return
        stored = self._storage.get(torch.arange(len(self)))
        slots = (stored["vlm_version"] >= 0).nonzero().squeeze(1)
        if len(slots):
            own = stored[slots]
            rewards = (
                apply_head(self._head, own["vlm_features"].numpy(), of="this buffer") + own["vlm_task_reward"].numpy()
            )
            patch = TensorDict({("next", "reward"): torch.from_numpy(rewards)[:, None]}, [len(slots)])
            options: Any = {} if version is None else {"version_key": "vlm_version", "version": version}
            self.update_if_present(index=slots, generation=self._writer.generations_of(slots), patch=patch, **options)
            self._rows.mark(slots, True)


def _find_env(env: Any) -> VLMRewardEnv:
    """The environments that transforms are around."""
    while not isinstance(env, VLMRewardEnv):
        if (inner := getattr(env, "base_env", None)) is None or inner is env:
            raise TypeError(f"`env` must be a VLMRewardEnv, or transforms around one. Received {short_repr(env)}.")
        env = inner
    return env
