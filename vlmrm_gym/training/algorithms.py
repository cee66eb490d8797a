"""The algorithms that a configuration can name, and their arguments."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import flatdim

from vlmrm_gym.training.config import NON_ALGORITHM_KEYS, Config, RLConfig
from vlmrm_gym.validation import short_repr

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.noise import ActionNoise

    from vlmrm_gym.sb3 import VLMVecEnv


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """An algorithm of Stable-Baselines3 or sb3-contrib."""

    library: str
    discrete: bool = False
    """Whether it supports discrete action spaces."""
    continuous: bool = False
    """Whether it supports continuous action spaces."""
    on_policy: bool = False


ALGORITHMS: Mapping[str, Algorithm] = {
    **{name: Algorithm(library="stable_baselines3", continuous=True) for name in ("SAC", "TD3", "DDPG")},
    **{name: Algorithm(library="sb3_contrib", continuous=True) for name in ("TQC", "CrossQ")},
    "DQN": Algorithm(library="stable_baselines3", discrete=True),
    "QRDQN": Algorithm(library="sb3_contrib", discrete=True),
    **{
        name: Algorithm(library="stable_baselines3", discrete=True, continuous=True, on_policy=True)
        for name in ("PPO", "A2C")
    },
}

_ON_POLICY_NAMES = {"train_freq": "n_steps", "gradient_steps": "n_epochs"}
"""Keys of `rl`, and their names in on-policy algorithms."""

_NOISES = ("NormalActionNoise", "OrnsteinUhlenbeckActionNoise", "ActionRepeatNoise")


def algorithm_class(name: str) -> "type[BaseAlgorithm]":
    """The algorithm's class."""
    return getattr(import_module(ALGORITHMS[name].library), name)


@cache
def accepted_keys(name: str) -> Mapping[str, Any]:
    """The keys of `rl` that an algorithm accepts, and its own defaults."""
    defaults = {key: one.default for key, one in inspect.signature(algorithm_class(name)).parameters.items()}
    if ALGORITHMS[name].on_policy:
        defaults |= {key: defaults[called] for key, called in _ON_POLICY_NAMES.items() if called in defaults}
    return {key: default for key, default in defaults.items() if key != "n_steps"}


def find_setting(rl: RLConfig, key: str) -> Any:
    """The value of a key of `rl`, else the algorithm's own default; None if it has no such parameter."""
    assert rl.algorithm is not None
    value = getattr(rl, key)
    return accepted_keys(rl.algorithm).get(key) if value is None else value


def algorithm_options(config: Config, envs: "VLMVecEnv", num_timesteps: int = 0) -> dict[str, Any]:
    """Keyword arguments of the algorithm's class: all that is given, also what the class refuses.

    Args:
        config: With defaults filled in.
        envs: The environments to train in.
        num_timesteps: Steps, over all environments, that the training has made already.

    Raises:
        ValueError, TypeError: A value cannot be used, which Stable-Baselines3 would not say, or only later.
    """
    from vlmrm_gym.sb3 import DeferredReplayBuffer, DeferredRolloutBuffer, RewardHandle, RunningNormExtractor

    rl = config.rl
    assert rl.algorithm is not None
    on_policy = ALGORITHMS[rl.algorithm].on_policy
    given = {key: value for key, value in vars(rl).items() if key not in NON_ALGORITHM_KEYS and value is not None}
    if (steps := given.get("gradient_steps")) == 0 or (on_policy and steps == -1):
        raise ValueError(f"`gradient_steps` must be at least 1 for {rl.algorithm}. Received {steps}.")
    if isinstance(rl.ent_coef, str) and (on_policy or not rl.ent_coef.startswith("auto")):
        rule = f"must be a number{'' if on_policy else ', auto or auto_0.1,'} for {rl.algorithm}"
        raise ValueError(f"`ent_coef` {rule}. Received {short_repr(rl.ent_coef)}.")
    options = {_ON_POLICY_NAMES.get(key, key) if on_policy else key: value for key, value in given.items()}
    options["device"] = rl.device
    options["policy_kwargs"] = dict(rl.policy_kwargs or {})  # a copy: algorithms add to it
    if rl.normalize_observations:
        options["policy_kwargs"].setdefault("features_extractor_class", RunningNormExtractor)
    if "action_noise" in options:
        warm_up = max(0, (rl.learning_starts or 0) - num_timesteps) // config.num_envs
        options["action_noise"] = _make_noise(options["action_noise"], flatdim(envs.action_space), warm_up)
    if not on_policy:
        options["replay_buffer_class"] = DeferredReplayBuffer
    elif config.reward.name != "ground_truth":
        options["rollout_buffer_class"] = DeferredRolloutBuffer
        options["rollout_buffer_kwargs"] = {"rewards": RewardHandle(envs)}
    return options


def _make_noise(settings: Mapping[str, Any], size: int, warm_up: int) -> "ActionNoise":
    """Make an action noise, of which Stable-Baselines3's check nothing.

    Raises:
        ValueError, TypeError: It is of no known kind, lacks a parameter, or draws no finite numbers.
    """
    from stable_baselines3.common import noise

    from vlmrm_gym.sb3 import ActionRepeatNoise

    own = {key: value for key, value in settings.items() if key != "name"}
    if (name := settings.get("name")) not in _NOISES:
        raise ValueError(f"`action_noise` must have a name: {', '.join(_NOISES)}. Received {short_repr(settings)}.")
    if name == "ActionRepeatNoise":
        return ActionRepeatNoise(size, steps=warm_up, **own)
    mean, sigma = (np.full(size, own.pop(key, default), float) for key, default in (("mean", 0.0), ("sigma", 0.1)))
    made = getattr(noise, name)(mean, sigma, **own)
    with np.errstate(invalid="ignore"):
        is_finite = (sigma >= 0).all() and np.isfinite(made()).all()
    made.reset()
    if not is_finite:
        raise ValueError(f"`action_noise` must draw finite numbers. Received {short_repr(settings)}.")
    return made
