"""Checks that whatever steps the environments waits for rewards, so that nothing learns from NaN or placeholders."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self, cast

import gymnasium as gym
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize
from stable_baselines3.her import HerReplayBuffer

from vlmrm_gym.data.store import find_featured


class DeferredBuffer:
    """Base class of the buffers which wait for rewards."""

    for_dictionaries: ClassVar[type["DeferredBuffer"]]
    """The subclass for observations that are dictionaries: algorithms choose it only if no class is passed."""

    def __new__(cls, buffer_size: int = 0, observation_space: Any = None, *args: Any, **kwargs: Any) -> Self:
        """Choose the class by the observation space."""
        is_dictionary = isinstance(observation_space, gym.spaces.Dict)
        return cast(Self, object.__new__(vars(cls).get("for_dictionaries", cls) if is_dictionary else cls))


def check_callers(envs: VecEnv, *, deferred: bool) -> bool:
    """Raise a ValueError if rewards that have not arrived are being learned from, or summed up by an evaluation.

    Training, evaluation and user code call the same methods. Stable-Baselines3 has no hook that tells them apart, so
    this inspects the call stack. `deferred`: rewards arrive later than the step, or there is no head yet that makes
    them. Returns whether a `VecMonitor` sums them up.
    """
    monitored = False
    for name, variables in _callers(envs):
        caller = variables.get("self")
        if isinstance(caller, VecMonitor):
            monitored = deferred
        elif name == "evaluate_policy":
            if monitored:
                raise ValueError(
                    "`env` must not have a VecMonitor around it when it is evaluated: it sums up rewards before they "
                    'arrive. Leave it out: VLMVecEnv itself fills in infos["episode"]. Or pass scoring="step".'
                )
            break
        elif isinstance(caller, BaseAlgorithm):
            buffer = variables.get("replay_buffer", variables.get("rollout_buffer"))
            _check_buffer(caller, buffer, envs, deferred=deferred)
            break
    return monitored


def is_evaluated(envs: VecEnv) -> bool:
    """Tell whether `evaluate_policy` of Stable-Baselines3 or sb3-contrib has called this with these environments."""
    return any(name == "evaluate_policy" for name, _ in _callers(envs))


def _callers(envs: VecEnv) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Functions in the call stack that step the environments, innermost first: their names and local variables."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_name
        if name in ("step_wait", "collect_rollouts", "evaluate_policy"):
            variables = frame.f_locals
            stepped = variables.get("self" if name == "step_wait" else "env")
            if isinstance(stepped, VecEnv) and stepped.unwrapped is envs:
                yield name, variables
        frame = frame.f_back


def _check_buffer(algorithm: BaseAlgorithm, buffer: BaseBuffer | None, envs: Any, *, deferred: bool) -> None:
    """Raise a ValueError if an algorithm would learn from missing rewards, or get other returns than it asks for."""
    if isinstance(buffer, HerReplayBuffer):
        rule = "`replay_buffer_class` must not be HerReplayBuffer: it computes rewards from goals, not from frames."
        raise ValueError(f"{rule} Use DeferredReplayBuffer.")
    if isinstance(buffer, DeferredBuffer):
        check_normalization(algorithm.get_vec_normalize_env())
        if isinstance(algorithm, OffPolicyAlgorithm):
            check_n_steps(algorithm.n_steps)
        return
    if not deferred:
        return
    waits = 'rollout_buffer_class=DeferredRolloutBuffer, rollout_buffer_kwargs={"rewards": RewardHandle(envs)}'
    if isinstance(algorithm, OffPolicyAlgorithm):
        waits = "replay_buffer_class=DeferredReplayBuffer"
    featured = find_featured(envs.envs)
    learns = featured is not None and featured.head.head is None
    end = "the reward has its first head" if learns else "an episode has been scored"
    raise ValueError(
        f"`env` gives NaN rewards until {end}, so the buffer of {type(algorithm).__name__} must wait for them. "
        f'Received a {type(buffer).__name__}. Pass {waits}; or make the environments with scoring="step".'
    )


def check_n_steps(n_steps: int) -> None:
    """Raise a ValueError unless returns are one-step returns."""
    if n_steps != 1:
        rule = "`n_steps` must be 1 with DeferredReplayBuffer: transitions are stored when their rewards arrive."
        raise ValueError(f'{rule} Received {n_steps!r}. Leave it out, or train on environments with scoring="step".')


def check_normalization(envs: VecNormalize | None) -> None:
    """Raise a ValueError if a `VecNormalize` normalises rewards."""
    if envs is not None and envs.norm_reward:
        raise ValueError(
            "`norm_reward` of VecNormalize must be False: it would normalise by rewards that have not arrived. "
            "Received True. Pass norm_reward=False."
        )
