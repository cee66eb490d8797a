"""Scored environments of TorchRL."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from vlmrm_gym._util.errors import close_on_error
from vlmrm_gym._util.steps import VectorSteps
from vlmrm_gym._util.validation import check_integer
from vlmrm_gym.data.late import Late, read_late
from vlmrm_gym.envs.make import make_vector_env
from vlmrm_gym.infos import read_success

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
        infos = {name: Unbounded(torch.Size([count, 1]), dtype=dtype) for name, dtype in INFOS.items()}
        observed = {name: _as_spec(one, count) for name, one in own.items()}
        self.observation_spec = Composite({**observed, **infos}, shape=self.batch_size)
        self.action_spec = _as_spec(envs.single_action_space, count)
        self.reward_spec = Unbounded(torch.Size([count, 1]), dtype=torch.float32)
        flag = Binary(1, shape=torch.Size([count, 1]), dtype=torch.bool)
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
    if isinstance(space, spaces.Box):
        shape, dtype = torch.Size([count, *space.shape]), torch.as_tensor(np.empty(0, space.dtype)).dtype
        if not space.is_bounded():
            return Unbounded(shape, dtype=dtype)
        low, high = (torch.as_tensor(np.broadcast_to(bound, shape).copy()) for bound in (space.low, space.high))
        return Bounded(low, high, shape, dtype=dtype)
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return Categorical(int(space.n), shape=torch.Size([count]), dtype=torch.int64)
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
