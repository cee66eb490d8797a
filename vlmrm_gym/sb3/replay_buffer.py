"""A replay buffer for Stable-Baselines3 whose transitions wait for their rewards."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count, takewhile
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

from vlmrm_gym._util.validation import check_observation_space
from vlmrm_gym.data.late import read_late
from vlmrm_gym.data.store import FeaturesDtype, TransitionStore, flatten_field
from vlmrm_gym.rewards.current_head import CurrentHead
from vlmrm_gym.rewards.model import Head
from vlmrm_gym.sb3.checks import DeferredBuffer, check_n_steps, check_normalization

PIECE_BYTES = 2**26
"""Size of the entries of `state_dict`."""
_FIELDS = ("observations", "next_observations", "actions", "dones", "timeouts", "rewards")
"""Attributes of the buffer with the fields of transitions."""


class DeferredReplayBuffer(DeferredBuffer, ReplayBuffer):
    """A replay buffer whose transitions wait for their rewards. Only transitions with rewards are sampled.

    For `replay_buffer_class` of Stable-Baselines3's off-policy algorithms, on a `VLMVecEnv`. Set `learning_starts` to
    at least one episode of every environment.

    After `set_env` or `load`, pending transitions of the old environments are dropped: their rewards do not arrive any
    more.

    If observations are dictionaries, an instance is also a `DictReplayBuffer` of Stable-Baselines3.

    On environments with `return_features=True` it also keeps what `relabel` needs, as `vlmrm_gym.ReplayBuffer` does.
    Whether that fits into the memory is checked when the first features arrive.

    Args:
        buffer_size: See Stable-Baselines3, like all other parameters but the last.
        features_dtype: How features are kept: "float32", or "float16" in half of the memory.

    Raises:
        ValueError: `optimize_memory_usage` is True or `n_steps` is above 1, which need transitions in chronological
            order; the observation space is not a box or discrete space, or a flat Dict of such spaces; or
            `features_dtype` is another.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym.spaces.Space[Any],
        action_space: gym.spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_steps: int = 1,
        gamma: float = 0.99,  # unused; accepted because Stable-Baselines3 passes it along with `n_steps`
        features_dtype: FeaturesDtype = "float32",
    ) -> None:
        check_n_steps(n_steps)
        if optimize_memory_usage:
            raise ValueError(
                "`optimize_memory_usage` must be False with DeferredReplayBuffer: transitions are stored when their "
                "rewards arrive, not one after the other. Received True. Leave it out."
            )
        check_observation_space("observation_space", observation_space)
        # Stored as one environment: rewards of different environments arrive at different times.
        super().__init__(buffer_size, observation_space, action_space, device, 1, False, handle_timeout_termination)
        fields = dict[str, NDArray[Any]]()
        for name in _FIELDS:
            fields |= {key: column[:, 0] for key, column in flatten_field(name, getattr(self, name)).items()}
        self._late = TransitionStore(self.buffer_size, "buffer_size", features_dtype, fields=fields, num_envs=n_envs)
        self._env_uid = ""

    @property
    def num_pending(self) -> int:
        """Number of transitions that wait for their rewards."""
        return self._late.num_pending

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """Add the transitions of a step, and store those whose rewards have arrived. Raises as `ReplayBuffer.add`."""
        if foreign := [info for info in infos if "vlm_env_uid" not in info]:
            raise RuntimeError(
                f"DeferredReplayBuffer needs the infos of a VLMVecEnv. Received infos with keys {list(foreign[0])}. "
                "Make the environments with `vlmrm_gym.sb3.make_vec_env`."
            )
        if infos[0]["vlm_env_uid"] != self._env_uid:
            self._env_uid = infos[0]["vlm_env_uid"]
            self._late.drop_pending(len(infos))
        step = {
            **flatten_field("observations", obs),
            **flatten_field("next_observations", next_obs),
            "actions": action,
            "dones": done,
            "timeouts": [info.get("TimeLimit.truncated", False) for info in infos],
        }
        transitions = zip(*(np.array(step[name]) for name in self._late.waiting_fields), strict=True)
        for i, (info, transition) in enumerate(zip(infos, transitions, strict=True)):
            self._late.add(i, info["vlm_step_index"], transition)
        self.receive(infos)

    def reset(self) -> None:
        """Remove all stored transitions. What waits is kept."""
        super().reset()
        self._late.num_stored = 0

    def receive(self, infos: list[dict[str, Any]]) -> None:
        """Store the transitions whose rewards these infos have, one for each environment. Raises as `add`."""
        for late in read_late(infos):
            info = infos[late.env]
            if info["vlm_env_uid"] == self._env_uid:
                self._late.check_fingerprint(info.get("vlm_fingerprint", ""))
                # A transition may be missing: when a callback ends the training, the last one is not added.
                self._late.receive(late)
        self.pos, self.full = self._late.num_stored % self.buffer_size, self._late.num_stored >= self.buffer_size

    def relabel(self, head: Head) -> None:
        """Make all rewards anew, as `vlmrm_gym.ReplayBuffer.relabel`, by a head such as `envs.envs.head`.

        The head is not saved, neither with the model nor with the buffer: after loading call this again, unless it was
        not called before.
        """
        self._late.relabel(head)

    def resume(self, head: CurrentHead) -> None:
        """After `load_state_dict`: make rewards with this head from now on, as the one who saved the state did.

        Stored rewards stay as they are, to the bit, which `relabel` would not promise.

        Raises:
            ValueError: The head is of other features, or a stored reward is not finite.
        """
        self._late.resume(head)

    @property
    def is_settled(self) -> bool:
        """Whether all stored rewards are of one head; otherwise `relabel` has to be called."""
        return self._late.is_settled

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Sample transitions with rewards; a RuntimeError if there are none, or `relabel` has to be called first."""
        check_normalization(env)
        self._late.check_sample()
        return super().sample(batch_size, env)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the used part of the storage, and no head."""
        arguments = {
            "buffer_size": self.buffer_size,
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "device": self.device,
            "n_envs": self._late.num_envs,
            "handle_timeout_termination": self.handle_timeout_termination,
            "features_dtype": self._late.dtype,
        }
        return partial(type(self), **arguments), (), self.state_dict()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Stored and pending transitions as arrays without objects, for `np.savez`; views, not copies.

        Large columns are in several entries, "features[0]" and so on, so that loading has one at a time in memory. The
        head of `relabel` is not among them.
        """
        numbers = {**self._late.state, "pos": self.pos, "full": self.full, "env_uid": self._env_uid}
        state = {name: np.array(value) for name, value in numbers.items()}
        for name, column in self._late.columns.items():
            state |= _split(name, column[: self.size(), None])  # (N, 1, ...), as Stable-Baselines3 has it
        return state | {f"pending_{name}": column for name, column in self._late.pending().items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a `state_dict` of a buffer with the same size, spaces, features and number of environments."""
        self.pos, self.full, self._env_uid = int(state["pos"]), bool(state["full"]), str(state["env_uid"])
        self._late.load(state, self.pos + self.buffer_size * self.full, lambda name: _pieces(state, name))
        pending = (state[f"pending_{name}"] for name in self._late.pending())
        for env_index, step_index, *transition in zip(*pending, strict=True):
            self._late.add(int(env_index), int(step_index), tuple(transition))

    __setstate__ = load_state_dict


def _split(name: str, column: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Split a large column into views under "name[0]", "name[1]", ...; a small one stays under its name."""
    rows = max(1, PIECE_BYTES // max(1, column[:1].nbytes))
    if len(column) <= rows:
        return {name: column}
    return {f"{name}[{i}]": column[i * rows : (i + 1) * rows] for i in range(-(-len(column) // rows))}


def _pieces(state: Mapping[str, NDArray[Any]], name: str) -> Iterator[NDArray[Any]]:
    """Yield the parts of a column that `_split` made, in order, without the dimension of environments."""
    names = [name] if name in state else (f"{name}[{number}]" for number in count())
    for part in takewhile(state.__contains__, names):
        yield state[part][:, 0]


class DeferredDictReplayBuffer(DeferredReplayBuffer, DictReplayBuffer):
    """A `DeferredReplayBuffer` for observations that are dictionaries."""


DeferredReplayBuffer.for_dictionaries = DeferredDictReplayBuffer
