"""The algorithms that a configuration can name, and their arguments."""

import difflib
import inspect
import json
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces
from pydantic import ConfigDict, TypeAdapter, ValidationError

from vlmrm_gym._util.validation import find_time_limit, is_number, short_repr, truncate
from vlmrm_gym.rewards.sources import announced, default_model
from vlmrm_gym.tasks import CART_POLE_TRAINING, HUMANOID_TRAINING
from vlmrm_gym.tools.environments import make_unscored_env
from vlmrm_gym.tools.train.config import LEGACY_NAMES, Config, RLConfig
from vlmrm_gym.tools.train.config_file import Problem, names_of
from vlmrm_gym.tools.yaml_values import as_whole

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.noise import ActionNoise

    from vlmrm_gym.sb3 import VLMVecEnv


_CONTRIB = ("TQC", "CrossQ", "QRDQN")
"""Algorithms of sb3-contrib; the others are of Stable-Baselines3."""
ON_POLICY = ("PPO", "A2C")
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
    return getattr(import_module("sb3_contrib" if name in _CONTRIB else "stable_baselines3"), name)


@cache
def parameters(name: str) -> Mapping[str, inspect.Parameter]:
    """List the keys of `rl` that are keyword arguments of an algorithm."""
    arguments = dict(inspect.signature(algorithm_class(name)).parameters)
    if name in ON_POLICY:
        arguments |= {key: arguments.pop(called) for key, called in _ON_POLICY_NAMES.items() if called in arguments}
    ours = re.compile(rf"_.*|.*_buffer_(class|kwargs)|{'|'.join(_NOT_SETTINGS)}")
    return {key: one for key, one in arguments.items() if not ours.fullmatch(key)}


def find_setting(rl: RLConfig, key: str) -> Any:
    """Find the value of a keyword argument, else the algorithm's own default; None if it has no such parameter."""
    parameter = parameters(rl.algorithm or "").get(key)
    return rl.arguments.get(key, None if parameter is None else parameter.default)


def find_wrong_arguments(rl: RLConfig) -> list[Problem]:
    """Keyword arguments that the algorithm does not have, or that are not of the type that it declares."""
    rules = {key: _find_fault(rl.algorithm or "", key, value) for key, value in rl.arguments.items()}
    return [Problem.of(f"rl.{key}", rule) for key, rule in rules.items() if rule is not None]


def _find_fault(algorithm: str, key: str, value: Any) -> str | None:
    """The rule that a keyword argument breaks; None if it is right."""
    known = parameters(algorithm)
    if key not in known:
        near = [ours for ours, called in _ON_POLICY_NAMES.items() if called == key and ours in known]
        near = near or difflib.get_close_matches(truncate(key), [*names_of(("rl",)), *known], 1, cutoff=0.7)
        meant = f"Did you mean `rl.{near[0]}`?" if near and near[0] != key else f"It has {', '.join(known)}."
        return f"is not a parameter of {algorithm}. {meant}"
    if key == "action_noise":  # `_make_noise` checks it
        return None
    try:
        _convert(known[key], value)
    except ValidationError as error:
        rule = error.errors()[0]["msg"].replace("Input should", "must", 1)
        return f"{rule}. Received {short_repr(value)}."
    least = _LEAST.get(key, int(known[key].annotation is int))
    if is_number(value) and not least <= value <= _MOST:
        return f"must be from {least} to 10^9. Received {short_repr(value)}."
    return None


def _convert(parameter: inspect.Parameter, value: Any) -> Any:
    """A value of YAML as the type that a parameter declares, such as a list as a tuple."""
    value = tuple(value) if isinstance(value, list) else as_whole(value)
    config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False, strict=True)
    return TypeAdapter(parameter.annotation, config=config).validate_python(value)


def algorithm_options(config: Config, envs: "VLMVecEnv", num_timesteps: int = 0) -> dict[str, Any]:
    """Keyword arguments of the algorithm's class, after `num_timesteps` steps over all environments."""
    from vlmrm_gym.sb3 import DeferredReplayBuffer, DeferredRolloutBuffer, RewardHandle, RunningNormExtractor

    rl, algorithm = config.rl, config.rl.algorithm or ""
    on_policy, known = algorithm in ON_POLICY, parameters(algorithm)
    if (steps := rl.gradient_steps) == 0 or (on_policy and steps == -1):
        raise ValueError(f"`gradient_steps` must be at least 1 for {algorithm}. Received {steps}.")
    options = {key: _convert(known[key], value) for key, value in rl.arguments.items() if key != "action_noise"}
    options = {_ON_POLICY_NAMES.get(key, key) if on_policy else key: value for key, value in options.items()}
    options["device"] = rl.device
    options["policy_kwargs"] = dict(options.get("policy_kwargs") or {})  # a copy: algorithms add to it
    if rl.normalize_observations:
        options["policy_kwargs"].setdefault("features_extractor_class", RunningNormExtractor)
    if rl.action_noise is not None:
        warm_up = max(0, (rl.learning_starts or 0) - num_timesteps) // config.num_envs
        options["action_noise"] = _make_noise(rl.action_noise, spaces.flatdim(envs.action_space), warm_up)
    if not on_policy:
        options["replay_buffer_class"] = DeferredReplayBuffer
    else:
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


_MIN_STEPS, _MIN_EPISODES = 200_000, 25
"""Minimum length of training runs, if no record has defaults, in total steps and in episodes of every environment."""
_LOGGED = {"checkpoint_freq": 10, "video_freq": 5, "tensorboard_freq": 100}
"""How often in a run something is written."""
_PUBLISHED_KEYS = {"n_steps", "n_envs_per_worker", "episode_length", "learning_starts", "train_freq", "batch_size"}
_PUBLISHED_KEYS |= {"gradient_steps", "tau", "gamma", "learning_rate"}
"""Keys of `rl` that every configuration file of the published code has."""


class Traits(NamedTuple):
    """Properties of an environment: its spaces, its own time limit, and the model of rewards that name none."""

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    episode_length: int | None
    model: str


def read_traits(config: Config) -> Traits:
    """Make the environment of a configuration, read its properties, and close it; an InputError if it cannot be."""
    return _read_traits(config.id, json.dumps(config.env_kwargs))


@cache
def _read_traits(id: str, env_kwargs: str) -> Traits:
    with closing(make_unscored_env(id, json.loads(env_kwargs))) as env:
        if "rgb_array" not in (modes := env.metadata.get("render_modes", [])):
            raise ValueError(f'its environments must have the render mode "rgb_array". They have {modes}.')
        return Traits(env.observation_space, env.action_space, find_time_limit(env), default_model(env))


def with_defaults(config: Config) -> Config:
    """Fill in the defaults of a configuration for its environment and algorithm.

    Keys of `rl` stay away if the algorithm lacks the parameter or uses Stable-Baselines3's default.
    """
    user_rl, traits = config.rl, read_traits(config)
    if (length := user_rl.episode_length or traits.episode_length) is None:
        rule = f"must be given: {config.id} has no time limit of its own. Received None."
        raise ValueError(f"`episode_length` {rule} Say after how many steps episodes are truncated.")
    reward = config.reward_with_task_prompts
    if reward.name in ("clip", "preference") and reward.model is None and "model" not in (reward.kwargs or {}):
        reward = replace(reward, model=announced(traits.model))
    config = replace(config, rl=replace(user_rl, episode_length=length), reward=reward)
    filled = _task_defaults(config)
    algorithm = user_rl.algorithm or filled["algorithm"]
    if config.env_name in LEGACY_NAMES and config.rl.values.keys() >= _PUBLISHED_KEYS:
        # In a file of the published code missing keys mean Stable-Baselines3's defaults; but 1, not DQN's 10,000:
        filled = {"target_update_interval": 1}
    is_dict = isinstance(traits.observation_space, spaces.Dict)
    filled |= {"algorithm": algorithm, "policy_name": "MultiInputPolicy" if is_dict else "MlpPolicy"}
    foreign = RLConfig.of(filled).arguments.keys() - parameters(algorithm).keys()
    if algorithm in ON_POLICY:  # these keys have another meaning for them
        foreign |= {"train_freq", "gradient_steps", "batch_size"}
    rl = RLConfig.of({name: value for name, value in filled.items() if name not in foreign} | config.rl.values)
    assert rl.n_steps is not None
    config = replace(config, rl=rl)
    if user_rl.learning_starts is None and rl.learning_starts is not None:  # leave time to learn in short runs
        starts = max(config.min_steps_to_reward - 1, min(rl.learning_starts, rl.n_steps // 2))
        config = replace(config, rl=replace(rl, learning_starts=starts))
    if config.preferences.every is None and config.reward.labeler is not None:
        first = config.preferences.first or find_setting(config.rl, "learning_starts") or 0
        every = max(1, (rl.n_steps - first) // 2 // config.preferences.num_rounds)
        config = replace(config, preferences=replace(config.preferences, every=every))
    open_keys = [key for key in _LOGGED if getattr(config.logging, key) is None]
    logging = replace(config.logging, **{key: rl.n_steps // _LOGGED[key] or 1 for key in open_keys})
    env_name = config.env_name if config.env_name in LEGACY_NAMES else config.id
    return replace(config, env_name=env_name, logging=logging)


def first_round(config: Config) -> int:
    """Steps before the first round about pairs."""
    preferences = config.preferences
    return preferences.first or find_setting(config.rl, "learning_starts") or preferences.every or 1


def _task_defaults(config: Config) -> dict[str, Any]:
    """Settings of the task's record; what it leaves open is as in our task with such actions, trained for longer."""
    traits = read_traits(config)
    is_discrete, space = isinstance(traits.action_space, spaces.Discrete), traits.observation_space
    generic: Mapping[str, Any] = CART_POLE_TRAINING if is_discrete else HUMANOID_TRAINING
    defaults = {key: value for key, value in generic.items() if key != "normalize_observations"} | {"gamma": 0.99}
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and not is_discrete:
        defaults["normalize_observations"] = True
    num_envs = config.rl.n_envs_per_worker or defaults["n_envs_per_worker"]
    needed = replace(config, rl=replace(config.rl, n_envs_per_worker=num_envs)).min_steps_to_reward
    defaults |= {"learning_starts": needed, "n_steps": max(_MIN_STEPS, _MIN_EPISODES * needed)}
    return defaults if config.task is None else {**defaults, **config.task.training}
