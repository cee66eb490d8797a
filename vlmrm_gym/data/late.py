"""Late rewards: those that arrive after the steps of their transitions. Needs neither torch nor an RL library."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_KEYS = ("vlm_reward_start", "vlm_rewards", "vlm_scored", "vlm_features", "vlm_task_rewards", "vlm_reward_version")
_KEYS += ("vlm_terms", "vlm_success")
"""The entries of infos that belong to late transitions, in the order of the fields of `Late` after `env`."""


class Late(NamedTuple):
    """The rewards of T transitions of one environment, one after the other."""

    env: int
    """Index of the environment."""
    start: int
    """The `vlm_step_index` of the first of these transitions; that of the others follow."""
    rewards: NDArray[np.float32]
    """float32 (T,); NaN where a reward that is learned has no head yet."""
    scored: NDArray[np.bool_]
    """bool (T,): False where the reward is interpolated or held, not scored."""
    features: NDArray[np.float32] | None = None
    """float32 (T, V, D), what the rewards were made of. This and the next two are None without `return_features=True`.
    """
    task_rewards: NDArray[np.float32] | None = None
    """float32 (T,), the part of the rewards that is the environment's own, times its weight."""
    versions: NDArray[np.int64] | None = None
    """int64 (T,), the version of the head that made each reward."""
    terms: Mapping[str, NDArray[np.float32]] | None = None
    """float32 (T,) by name: the score of each term of a sum, without its weight. None for other rewards."""
    success: NDArray[np.bool_] | None = None
    """bool (T,): whether a `Success` holds. None without one."""

    @property
    def stop(self) -> int:
        """The `vlm_step_index` after the last of these transitions."""
        return self.start + len(self.rewards)

    def as_info(self) -> dict[str, Any]:
        """The entries that the info of this environment has in `vlmrm_gym.sb3`; see `vlmrm_gym.infos`."""
        columns = zip(_KEYS, self[1:], strict=True)
        return {key: column for key, column in columns if column is not None}


def read_late(infos: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[Late]:
    """Read the rewards that have arrived: those of earlier transitions too, each of them once.

    >>> import gymnasium as gym, vlmrm_gym
    >>> envs = gym.make_vec("VLMRM/CartPole-v1", num_envs=2, episode_length=3)
    >>> observations, infos = envs.reset(seed=0)
    >>> for _ in range(3):
    ...     observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
    >>> [(late.env, late.start, late.rewards.shape) for late in vlmrm_gym.read_late(infos)]
    [(0, 0, (3,)), (1, 0, (3,))]
    >>> envs.close()

    Args:
        infos: What `step` or `reset` of a `VLMRewardVectorEnv` returned with its observations, or what its `flush`
            returned; or the list of dictionaries that `vlmrm_gym.sb3.VLMVecEnv` returned.

    Returns:
        A `Late` for each environment whose rewards have arrived, in the order of the environments. Arrays are not
        copied.

    Raises:
        TypeError: `infos` is something else.
    """
    if isinstance(infos, Mapping):
        arrived = np.flatnonzero(infos["_vlm_rewards"]).tolist() if "_vlm_rewards" in infos else []
        return [_read(i, {key: infos[key][i] for key in _KEYS if key in infos}) for i in arrived]
    if isinstance(infos, str) or not all(isinstance(info, Mapping) for info in infos):
        raise TypeError(
            "`infos` must be the infos of a VLMRewardVectorEnv, a dict, or of a VLMVecEnv, a list of dicts. Received "
            f"{type(infos).__name__}. Of what `step` returns they are the last element."
        )
    return [_read(i, info) for i, info in enumerate(infos) if "vlm_rewards" in info]


def join_late(parts: Sequence[Late]) -> Late:
    """Join the late rewards of one environment, each of which begin where the ones before stop."""
    columns = zip(*(late[2:] for late in parts), strict=True)
    return Late._make([*parts[0][:2], *map(_join, columns)])


def _join(column: Sequence[Any]) -> Any:
    if isinstance(column[0], Mapping):
        return {name: np.concatenate([part[name] for part in column]) for name in column[0]}
    return None if column[0] is None else np.concatenate(column)


def _read(env: int, info: Mapping[str, Any]) -> Late:
    columns: list[Any] = [info.get(key) for key in _KEYS]
    late = Late(env, *columns)
    rewards = np.asarray(late.rewards, dtype=np.float32)
    scored = np.full(rewards.shape, True) if late.scored is None else late.scored
    # The version is one number where the rewards arrive together.
    versions = None if late.versions is None else np.broadcast_to(late.versions, rewards.shape)
    return late._replace(start=int(late.start), rewards=rewards, scored=scored, versions=versions)
