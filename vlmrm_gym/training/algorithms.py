"""The algorithms that a configuration can name, and their arguments."""

import difflib
import inspect
import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium.spaces import flatdim
from pydantic import ConfigDict, TypeAdapter, ValidationError

from vlmrm_gym._util.validation import is_number, short_repr, truncate
from vlmrm_gym.training.config import Config, RLConfig
from vlmrm_gym.training.config_file import Problem, describe, names_of

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.noise import ActionNoise

    from vlmrm_gym.sb3 import VLMVecEnv


class Algorithm(NamedTuple):
    """The library of an algorithm, and whether it takes discrete actions, and learns on-policy."""

    library: str = "stable_baselines3"
    discrete: bool = False
    on_policy: bool = False


ALGORITHMS: Mapping[str, Algorithm] = {
    **dict.fromkeys(("SAC", "TD3", "DDPG"), Algorithm()),
    **dict.fromkeys(("TQC", "CrossQ"), Algorithm("sb3_contrib")),
    "DQN": Algorithm(discrete=True),
    "QRDQN": Algorithm("sb3_contrib", discrete=True),
    **dict.fromkeys(("PPO", "A2C"), Algorithm(discrete=True, on_policy=True)),
}

_ON_POLICY_NAMES = {"train_freq": "n_steps", "gradient_steps": "n_epochs"}
"""Keys of `rl`, and their names in on-policy algorithms."""
_NOT_SETTINGS = ("policy", "env", "seed", "device", "n_steps", "tensorboard_log", "monitor_wrapper")
"""Parameters of algorithms that this package sets; and `n_steps`, which is the length of the training here."""
_MOST = 10**9
"""Largest number that is passed on: more than memory holds."""
_LEAST = {"verbose": 0, "sde_sample_freq": -1, "gradient_steps": -1, "learning_starts": 0, "target_entropy": -_MOST}
_LEAST |= {"top_quantiles_to_drop_per_net": 0}
"""Smallest numbers, where they are not 1 for integers and 0 for others."""
_NOISES = ("NormalActionNoise", "OrnsteinUhlenbeckActionNoise", "ActionRepeatNoise")


def algorithm_class(name: str) -> "type[BaseAlgorithm]":
    """Find the algorithm's class."""
    return getattr(import_module(ALGORITHMS[name].library), name)


@cache
def parameters(name: str) -> Mapping[str, inspect.Parameter]:
    """List the keys of `rl` that are keyword arguments of an algorithm."""
    arguments = dict(inspect.signature(algorithm_class(name)).parameters)
    if ALGORITHMS[name].on_policy:
        arguments |= {key: arguments.pop(called) for key, called in _ON_POLICY_NAMES.items() if called in arguments}
    ours = re.compile(rf"_.*|.*_buffer_(class|kwargs)|{'|'.join(_NOT_SETTINGS)}")
    return {key: one for key, one in arguments.items() if not ours.fullmatch(key)}


def find_setting(rl: RLConfig, key: str) -> Any:
    """Find the value of a keyword argument, else the algorithm's own default; None if it has no such parameter."""
    assert rl.algorithm is not None
    default = parameters(rl.algorithm).get(key)
    return rl.arguments.get(key, None if default is None else default.default)


def find_wrong_arguments(rl: RLConfig) -> list[Problem]:
    """Keyword arguments that the algorithm does not have, or that are not of the type that it declares."""
    assert rl.algorithm is not None
    known, problems = parameters(rl.algorithm), []
    for key, value in rl.arguments.items():
        rule = None
        if key not in known:
            near = [ours for ours, called in _ON_POLICY_NAMES.items() if called == key and ours in known]
            near = near or difflib.get_close_matches(truncate(key), [*names_of(("rl",)), *known], 1, cutoff=0.7)
            meant = f"Did you mean `rl.{near[0]}`?" if near and near[0] != key else f"It has {', '.join(known)}."
            rule = f"is not a parameter of {rl.algorithm}. {meant}"
        elif key != "action_noise":  # which `_make_noise` makes of a mapping
            least = _LEAST.get(key, int(known[key].annotation is int))
            try:
                _convert(known[key], value)
            except ValidationError as error:
                rule = describe(error.errors()[0])
            else:
                if is_number(value) and not least <= value <= _MOST:
                    rule = f"must be from {least} to 10^9. Received {short_repr(value)}."
        problems += [] if rule is None else [Problem.of(f"rl.{key}", rule)]
    return problems


def _convert(parameter: inspect.Parameter, value: Any) -> Any:
    """A value of YAML as the type that a parameter declares, such as a list as a tuple."""
    value = tuple(value) if isinstance(value, list) else value
    value = int(value) if isinstance(value, float) and value.is_integer() else value  # 1e6
    config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False, strict=True)
    return TypeAdapter(parameter.annotation, config=config).validate_python(value)


def algorithm_options(config: Config, envs: "VLMVecEnv", num_timesteps: int = 0) -> dict[str, Any]:
    """Keyword arguments of the algorithm's class, after `num_timesteps` steps over all environments.

    Raises a ValueError or TypeError for values of which Stable-Baselines3 would not say that they learn nothing.
    """
    from vlmrm_gym.sb3 import DeferredReplayBuffer, DeferredRolloutBuffer, RewardHandle, RunningNormExtractor

    rl = config.rl
    assert rl.algorithm is not None
    on_policy, known = ALGORITHMS[rl.algorithm].on_policy, parameters(rl.algorithm)
    if (steps := rl.gradient_steps) == 0 or (on_policy and steps == -1):
        raise ValueError(f"`gradient_steps` must be at least 1 for {rl.algorithm}. Received {steps}.")
    options = {key: _convert(known[key], value) for key, value in rl.arguments.items() if key != "action_noise"}
    options = {_ON_POLICY_NAMES.get(key, key) if on_policy else key: value for key, value in options.items()}
    options["device"] = rl.device
    options["policy_kwargs"] = dict(options.get("policy_kwargs") or {})  # a copy: algorithms add to it
    if rl.normalize_observations:
        options["policy_kwargs"].setdefault("features_extractor_class", RunningNormExtractor)
    if rl.action_noise is not None:
        warm_up = max(0, (rl.learning_starts or 0) - num_timesteps) // config.num_envs
        options["action_noise"] = _make_noise(rl.action_noise, flatdim(envs.action_space), warm_up)
    if not on_policy:
        options["replay_buffer_class"] = DeferredReplayBuffer
    elif config.reward.name != "ground_truth":
        options["rollout_buffer_class"] = DeferredRolloutBuffer
        options["rollout_buffer_kwargs"] = {"rewards": RewardHandle(envs)}
    return options


def _make_noise(settings: Mapping[str, Any], size: int, warm_up: int) -> "ActionNoise":
    """Make an action noise, of which Stable-Baselines3's check nothing."""
    from stable_baselines3.common import noise

    from vlmrm_gym.sb3 import ActionRepeatNoise

    options = {key: value for key, value in settings.items() if key != "name"}
    if (name := settings.get("name")) not in _NOISES:
        raise ValueError(f"`action_noise` must have a name: {', '.join(_NOISES)}. Received {short_repr(settings)}.")
    if name == "ActionRepeatNoise":
        return ActionRepeatNoise(size, steps=warm_up, **options)
    mean, sigma = (np.full(size, options.pop(key, default), float) for key, default in (("mean", 0.0), ("sigma", 0.1)))
    result = getattr(noise, name)(mean, sigma, **options)
    with np.errstate(invalid="ignore"):
        is_finite = (sigma >= 0).all() and np.isfinite(result()).all()
    result.reset()
    if not is_finite:
        raise ValueError(f"`action_noise` must draw finite numbers. Received {short_repr(settings)}.")
    return result
