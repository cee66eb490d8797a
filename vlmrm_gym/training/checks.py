"""Checks of a configuration as a whole, before anything is loaded."""

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import util
from typing import Any

import gymnasium as gym

from vlmrm_gym.registration import find_spec
from vlmrm_gym.training.algorithm_checks import check_algorithm
from vlmrm_gym.training.config import Config
from vlmrm_gym.training.config_file import Key, Problem, drop_invalid, flatten
from vlmrm_gym.training.external_envs import read_traits
from vlmrm_gym.training.reward_checks import check_reward
from vlmrm_gym.validation import short_repr, truncate

_LENGTH_KEYS: frozenset[Key] = frozenset(
    {
        *(("rl", key) for key in ("n_steps", "n_envs_per_worker", "episode_length", "learning_starts", "train_freq")),
        ("reward",),
        ("reward", "num_workers"),
        ("reward", "overlap"),
    }
)
"""The keys that decide whether rewards arrive before learning starts."""

_RAY_RESOURCES = (
    "num_cpus",
    "num_gpus",
    "memory",
    "object_store_memory",
    "resources",
    "accelerator_type",
    "label_selector",
    "scheduling_strategy",
)
"""Options of Ray actors that say where they run. Others may name code, as `runtime_env` does."""


def _has_path(value: Any) -> bool:
    """Whether one of the texts in a value may be "module:name", which an environment may import."""
    if isinstance(value, dict):
        return any(map(_has_path, (*value, *value.values())))
    return any(map(_has_path, value)) if isinstance(value, list) else isinstance(value, str) and ":" in value


_CODE: Mapping[Key, Callable[[Any], bool]] = {
    # Importing this package registers IDs. All other names of it, such as those of modules that it imports, are code.
    ("env_name",): lambda id: ":" in id.removeprefix("vlmrm_gym:"),
    ("env_kwargs",): _has_path,
    ("reward", "name"): _has_path,
    ("reward", "combine_views"): _has_path,
    ("reward", "ray_options"): lambda options: not set(options) <= set(_RAY_RESOURCES),
}
"""For every key that can name code: whether a value does."""


def validate(config: Config, wrong: Collection[Key] = ()) -> Iterator[Problem]:
    """Find missing and incompatible values.

    Args:
        config: A configuration whose values are valid individually.
        wrong: Keys whose values were invalid and dropped; checks that depend on them are skipped.
    """
    if config.track and util.find_spec("wandb") is None:
        yield Problem.of("track", "needs Weights and Biases: `pip install 'vlmrm-gym[track]'`, or leave it out.")
    if ("env_name",) in wrong or (config.env_kwargs and ("env_kwargs",) in wrong):
        return  # the environment is not made
    if (problem := _check_id(config)) is not None:
        yield problem
        return
    if not {("reward",), ("reward", "name")} & set(wrong):
        yield from (problem for problem in check_reward(config, wrong) if problem.key not in wrong)
    if not {("rl",), ("rl", "algorithm")} & set(wrong):
        found = check_algorithm(config, lengths=not _LENGTH_KEYS & set(wrong))
        yield from (problem for problem in found if problem.key not in wrong)


def find_named_code(config: Config, flags: Config) -> Iterator[Problem]:
    """Find keys that name code to run, except where flags say the same. Imports nothing.

    Args:
        config: The configuration.
        flags: What the flags say without a file.
    """
    now, said = flatten(config), flatten(flags)
    for key, names_code in _CODE.items():
        value = now[key]
        if value is not None and names_code(value) and value != said[key]:
            rule = f"names code that would be run. Received {short_repr(value)}. If you trust it, pass --trust-code."
            if key == ("reward", "ray_options"):
                rule += f" Without it, there may be {', '.join(_RAY_RESOURCES)}."
            yield Problem.of(".".join(key), rule)


def _check_id(config: Config) -> Problem | None:
    name = config.env_name
    if name is None:
        advice = "Say which environment; `vlmrm-gym tasks` lists them."
        files = [text for text in config.reward.prompt or () if text.endswith((".yaml", ".yml"))]
        if files:
            advice += f" {short_repr(files[-1])} was taken for a prompt: name the configuration file first."
        return Problem.of("env_name", f"is missing. {advice}")
    try:
        find_spec(config.id)
    except Exception as error:
        near = difflib.get_close_matches(truncate(name), gym.registry, 1)
        advice = f"Did you mean {near[0]!r}?" if near else "`vlmrm-gym tasks` lists those of this package."
        reason = "" if isinstance(error, gym.error.Error) else f" Importing it raised {truncate(repr(error))}."
        rule = f"must be a registered ID, or module:ID. Received {short_repr(name)}.{reason} {advice}"
        return Problem.of("env_name", rule)
    if config.task is not None and config.env_kwargs:
        rule = f"is for IDs of other packages. {config.id} has keys in `reward`. Leave it out."
        return Problem.of("env_kwargs", rule)
    try:
        read_traits(config.id, config.env_kwargs)
    except Exception as error:
        key = "env_kwargs" if config.env_kwargs else "env_name"
        reason = truncate(str(error) or repr(error), 1_000)
        return Problem((key,), f"`{key}`: {short_repr(name)} cannot be made: {reason}")
    wrong = [] if config.task is None else drop_invalid({"rl": dict(config.task.training)})[1]
    if wrong:
        return Problem.of("env_name", f"has a record whose `training` cannot be used. {wrong[0].message}")
    return None
