"""Checks of a configuration as a whole, before anything is loaded."""

import difflib
from collections.abc import Collection, Iterator
from importlib import util

import gymnasium as gym

from vlmrm_gym.registration import find_spec
from vlmrm_gym.training.algorithm_checks import check_algorithm
from vlmrm_gym.training.config import Config
from vlmrm_gym.training.config_file import ConfigFile, Key, Problem, drop_invalid
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

_UNTRUSTED = "names code that would be run. Received {received}. If you trust it, pass --trust-code."


def validate(config: Config, wrong: Collection[Key] = ()) -> Iterator[Problem]:
    """Find missing and incompatible values.

    Args:
        config: A configuration whose values are valid individually.
        wrong: Keys whose values were invalid and dropped; checks that depend on them are skipped.
    """
    if config.track and util.find_spec("wandb") is None:
        yield Problem.of("track", "needs Weights and Biases: `pip install 'vlmrm-gym[track]'`, or leave it out.")
    if ("env_name",) in wrong:
        return
    if (problem := _check_id(config)) is not None:
        yield problem
        return
    if not {("reward",), ("reward", "name")} & set(wrong):
        yield from (problem for problem in check_reward(config, wrong) if problem.key not in wrong)
    if not {("rl",), ("rl", "algorithm")} & set(wrong):
        found = check_algorithm(config, lengths=not _LENGTH_KEYS & set(wrong))
        yield from (problem for problem in found if problem.key not in wrong)


def find_named_code(file: ConfigFile, config: Config) -> Iterator[Problem]:
    """Find keys of a file that name code to run. Imports nothing.

    Args:
        file: The file.
        config: The file's configuration, as flags have changed it.
    """
    for name, before, now in (
        ("env_name", file.config.env_name, config.env_name),
        ("reward.name", file.config.reward.name, config.reward.name),
        ("reward.combine_views", file.config.reward.combine_views, config.reward.combine_views),
    ):
        if now and now == before and ":" in now.removeprefix("vlmrm_gym:"):
            yield Problem.of(name, _UNTRUSTED.format(received=short_repr(now)))
    before, now = file.config.reward.ray_options, config.reward.ray_options
    if now and now == before and "runtime_env" in now:
        yield Problem.of("reward.ray_options", _UNTRUSTED.format(received=short_repr(now)))


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
