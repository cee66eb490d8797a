"""Steps vector environments: brings what they return into one form, and checks it against their autoreset mode."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from vlmrm_gym._util.validation import as_array, check_autoreset_mode, check_that, find_metadata, short_repr

Mask = NDArray[np.bool_]

_OF_SAME_STEP = ("final_obs", "final_info", "final_observation")
"""Infos of environments that were reset in the step that ended their episode; the last is Gymnasium 0.29's."""


class Step(NamedTuple):
    """The results of a step, in copies."""

    observations: Any
    rewards: NDArray[np.float64]
    """float64 (num_envs,), 0 where the step only reset the environment."""
    terminations: Mask
    """bool (num_envs,)."""
    truncations: Mask
    """bool (num_envs,)."""
    infos: dict[str, Any]
    stepped: Mask
    """bool (num_envs,): where an action led to a state; false where the step only reset the environment."""

    @property
    def ends(self) -> Mask:
        """Where an episode has ended, bool (num_envs,)."""
        return self.terminations | self.truncations


class VectorSteps:
    """Steps and resets a vector environment, for every door that takes one. For arguments see `find_autoreset_mode`."""

    def __init__(
        self, parameter: str, env: VectorEnv[Any, Any, Any], autoreset_mode: AutoresetMode | str | None = None
    ) -> None:
        self.mode = find_autoreset_mode(parameter, env, autoreset_mode)
        """When an environment that has ended is reset."""
        self._parameter, self._env, self._num_envs = parameter, env, env.num_envs
        self._ended: Mask = np.zeros(self._num_envs, dtype=np.bool_)
        """Where an episode has ended, and the environment has not been reset; nowhere under same-step autoreset."""
        self._ended_here: Mask = np.zeros(self._num_envs, dtype=np.bool_)
        """Where `end` has ended it, which the environment does not know."""

    def reset(self, seed: Any, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any], Mask]:
        """Reset all environments, or those of `options["reset_mask"]`, bool (num_envs,).

        Returns observations, a copy; infos; and bool (num_envs,), which environments it reset.
        """
        mask = (options or {}).get("reset_mask")
        mask = np.full(self._num_envs, True) if mask is None else as_flags("`reset_mask`", mask, self._num_envs)
        observations, infos = self._env.reset(seed=seed, options=options)
        self._check_infos(infos)
        self._ended[mask] = self._ended_here[mask] = False
        return copy.deepcopy(observations), infos, mask

    def step(self, actions: Any) -> Step:
        """Step the environments. A ValueError where their answer contradicts the mode, or cannot be read."""
        if self.mode == AutoresetMode.DISABLED and self._ended.any():
            raise ResetNeeded(
                f"Environments {np.flatnonzero(self._ended)} have ended, and do not reset themselves. Call "
                '`reset(options={"reset_mask": mask})` before `step`.'
            )
        observations, rewards, terminations, truncations, infos = self._env.step(actions)
        self._check_infos(infos)
        stepped = ~self._ended
        if (mask := self._ended_here.copy()).any():  # it has stepped them once more
            observations, begun, _ = self.reset(None, {"reset_mask": mask})
            terminations, truncations = (np.where(mask, False, one) for one in (terminations, truncations))
            infos = _merge(_only(infos, ~mask), begun)
        step = Step(
            copy.deepcopy(observations),
            np.where(stepped, as_rewards(f"`rewards` of {self._env}", rewards, self._num_envs), 0.0),
            as_flags(f"`terminations` of {self._env}", terminations, self._num_envs),
            as_flags(f"`truncations` of {self._env}", truncations, self._num_envs),
            infos,
            stepped,
        )
        if self.mode == AutoresetMode.SAME_STEP:
            check_final_observations(step.infos, step.ends)
        elif keys := [name for name in _OF_SAME_STEP if name in infos and np.any(infos.get(f"_{name}", True))]:
            raise self._contradiction(f"infos with `{keys[0]}`, as of environments that reset in the step of the end")
        elif (wrong := step.ends & ~stepped).any():
            raise self._contradiction(f"an end of environments {np.flatnonzero(wrong)} in a step that only resets them")
        else:
            self._ended = step.ends
        return step

    def end(self, step: Step, mask: Mask) -> Step:
        """End the episodes of environments in a mask, which have just stepped, as if they had terminated themselves.

        They are reset when the mode says: under same-step autoreset by this call.
        """
        new, terminations = mask & ~step.ends, step.terminations | mask
        if self.mode != AutoresetMode.SAME_STEP or not new.any():
            self._ended = self._ended | new
            if self.mode == AutoresetMode.NEXT_STEP:
                self._ended_here = new
            return step._replace(terminations=terminations)
        observations, begun, _ = self.reset(None, {"reset_mask": new})
        last = np.empty(self._num_envs, dtype=object)
        for i, observation in enumerate(iterate(self._env.observation_space, step.observations)):
            last[i] = copy.deepcopy(observation) if new[i] else None
        ended = {"final_obs": last, "_final_obs": new, "final_info": _only(step.infos, new), "_final_info": new}
        infos = _merge(_merge(_only(step.infos, ~new), begun), ended)
        return step._replace(observations=observations, terminations=terminations, infos=infos)

    def _check_infos(self, infos: object) -> None:
        if not isinstance(infos, dict):
            raise TypeError(
                f"`{self._parameter}` must return infos as a dict. Received {type(infos).__name__}. Put the wrapper "
                "that converts them around VLMRewardVectorEnv instead."
            )

    def _contradiction(self, received: str) -> ValueError:
        return ValueError(
            f"`{self._parameter}` must reset its environments when its `autoreset_mode` says, {self.mode.value!r}. "
            f'Received {received}, from {self._env}. Correct `metadata["autoreset_mode"]`, or what was passed for it.'
        )


def _only(infos: Mapping[str, Any], mask: Mask) -> dict[str, Any]:
    """The infos of environments in a mask. An entry without a mask of its own is of all."""
    only = {}
    for key, value in infos.items():
        if isinstance(value, Mapping):
            value = _only(value, mask)
        elif key.startswith("_"):
            value = value & mask
        only[key] = value
    return only


def _merge(infos: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Put together the infos of environments and those of others."""
    merged = dict(infos)
    for key, value in others.items():
        if key not in infos:
            merged[key] = value
        elif isinstance(value, Mapping):
            merged[key] = _merge(infos[key], value)
        elif key.startswith("_"):
            merged[key] = infos[key] | value
        else:
            merged[key] = np.array(infos[key], dtype=np.result_type(infos[key], value))
            rows = others.get(f"_{key}", slice(None))
            merged[key][rows] = value[rows]
    return merged


def find_autoreset_mode(
    parameter: str, env: VectorEnv[Any, Any, Any], passed: AutoresetMode | str | None = None
) -> AutoresetMode:
    """When a vector environment resets those that have ended: as its metadata say, or else as was passed.

    A ValueError, whose message names `parameter`, if neither says the mode, or the two differ.
    """
    check_that(isinstance(env, VectorEnv), parameter, "a vector environment, such as `gym.make_vec` returns", env)
    declared = find_metadata(env, "autoreset_mode")
    if declared is not None:
        declared = check_autoreset_mode(declared, 'metadata["autoreset_mode"]')
    mode = declared if passed is None else check_autoreset_mode(passed)
    if mode is None:
        raise ValueError(
            f"`{parameter}` must say when it resets: its metadata have no `autoreset_mode`. Received {env}. Pass "
            'autoreset_mode="NextStep" if the step after an episode\'s end resets, "SameStep" if the step of the end '
            'itself does, "Disabled" if only `reset` does.'
        )
    if declared not in (None, mode):
        raise ValueError(
            f"`autoreset_mode` cannot change that of a vector environment. Received {mode.value!r}, but {env} has "
            f"{declared.value!r}. Leave it out, or pass a list of functions."
        )
    return mode


def check_final_observations(infos: Mapping[str, Any], ends: Mask) -> None:
    """Raise a ValueError if infos of same-step autoreset do not have the last observation of an episode that ended."""
    final = infos.get("final_obs")
    for i in np.flatnonzero(ends).tolist():
        if final is None or isinstance(final, Mapping) or final[i] is None:
            raise ValueError(
                f'`infos["final_obs"]` must have the last observation of environment {i}, whose episode has ended: its '
                f"`autoreset_mode` is {AutoresetMode.SAME_STEP.value!r}. Received infos with the keys {list(infos)}. "
                "Where the environment is not reset in that step, correct the mode."
            )


def as_flags(name: str, flags: Any, num_envs: int) -> Mask:
    """Read bools, or 0 and 1, of any array, tensor or list (num_envs,) or (num_envs, 1): bool (num_envs,), a copy."""
    column = _as_column(name, flags, num_envs)
    if column.dtype != np.bool_ and not np.isin(column, (0, 1)).all():
        raise ValueError(f"{name} must be true or false, or 0 and 1. Received {short_repr(flags)}.")
    return column.astype(np.bool_)


def as_rewards(name: str, rewards: Any, num_envs: int) -> NDArray[np.float64]:
    """Read numbers in the same way: float64 (num_envs,)."""
    column = _as_column(name, rewards, num_envs)
    if column.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be numbers. Received {short_repr(rewards)}.")
    return column.astype(np.float64)


def _as_column(name: str, values: Any, num_envs: int) -> NDArray[Any]:
    column = as_array(values)
    if column.shape not in ((num_envs,), (num_envs, 1)):
        raise ValueError(
            f"{name} must have one element for each of {num_envs} environments. Received {short_repr(values)}, of "
            f"shape {column.shape}."
        )
    return column.reshape(num_envs)
