"""Checks that an algorithm and its buffer wait for rewards, so that no algorithm learns from NaN or placeholders."""

import sys

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import (
    BaseBuffer,
    DictReplayBuffer,
    DictRolloutBuffer,
    ReplayBuffer,
    RolloutBuffer,
)
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize
from stable_baselines3.her import HerReplayBuffer


class DeferredBuffer:
    """Base class that marks the buffers which wait for rewards."""


def check_callers(envs: VecEnv, *, deferred: bool) -> bool:
    """Raise if the environments are being stepped by the training of an algorithm with an unsuitable buffer.

    Training, evaluation and user code call the same methods. Stable-Baselines3 has no hook that tells them apart, so
    this inspects the call stack.

    Args:
        envs: The environments, without wrappers.
        deferred: Whether rewards arrive later than the step, or there is no head yet that makes them.

    Returns:
        Whether a `VecMonitor` around the environments sums up rewards that have not arrived.

    Raises:
        ValueError: The algorithm's buffer does not wait for rewards, or computes its own; it uses n-step returns, or
            normalises rewards.
    """
    frame, monitored = sys._getframe(1), False
    while frame is not None:
        variables = frame.f_locals if frame.f_code.co_name in ("step_wait", "collect_rollouts") else {}
        caller, stepped = variables.get("self"), variables.get("env")
        if isinstance(caller, VecMonitor) and caller.unwrapped is envs:
            monitored = deferred
        elif isinstance(caller, BaseAlgorithm) and isinstance(stepped, VecEnv) and stepped.unwrapped is envs:
            _check_buffer(caller, variables.get("replay_buffer", variables.get("rollout_buffer")), deferred=deferred)
            break
        frame = frame.f_back
    return monitored


def _check_buffer(algorithm: BaseAlgorithm, buffer: BaseBuffer | None, *, deferred: bool) -> None:
    """Raise a ValueError if an algorithm would learn from missing rewards, or get other returns than it asks for."""
    if isinstance(buffer, HerReplayBuffer):
        raise ValueError(
            "`replay_buffer_class` must not be HerReplayBuffer: it computes rewards from goals, and a VLM reward is of "
            "frames. Use DeferredReplayBuffer."
        )
    if isinstance(buffer, DeferredBuffer):
        check_normalization(algorithm.get_vec_normalize_env())
    if isinstance(buffer, DeferredBuffer) and isinstance(algorithm, OffPolicyAlgorithm):
        check_n_steps(algorithm.n_steps)
    if not deferred or isinstance(buffer, DeferredBuffer):
        return
    alternative = 'make the environments with scoring="step".'
    if type(buffer) in (ReplayBuffer, DictReplayBuffer):
        remedy = f"Pass replay_buffer_class=DeferredReplayBuffer, or {alternative}"
    elif type(buffer) in (RolloutBuffer, DictRolloutBuffer):
        kwargs = 'rollout_buffer_kwargs={"rewards": RewardHandle(envs)}'
        remedy = f"Pass rollout_buffer_class=DeferredRolloutBuffer, {kwargs}, or {alternative}"
    else:
        remedy = alternative.capitalize()
    raise ValueError(
        f"`env` gives NaN rewards until an episode has been scored, or the reward has its first head, so the buffer of "
        f"{type(algorithm).__name__} must wait for them. Received a {type(buffer).__name__}. {remedy}"
    )


def check_n_steps(n_steps: int) -> None:
    """Raise a ValueError unless returns are one-step returns."""
    if n_steps != 1:
        raise ValueError(
            "`n_steps` must be 1 with DeferredReplayBuffer: transitions are stored when their rewards arrive, not one "
            f"after the other. Received {n_steps!r}. Leave it out, or leave out `replay_buffer_class` and make the "
            'environments with scoring="step".'
        )


def check_normalization(envs: VecNormalize | None) -> None:
    """Raise a ValueError if a `VecNormalize` normalises rewards."""
    if envs is not None and envs.norm_reward:
        raise ValueError(
            "`norm_reward` of VecNormalize must be False: it would normalise by rewards that have not arrived. "
            "Received True. Pass norm_reward=False."
        )
