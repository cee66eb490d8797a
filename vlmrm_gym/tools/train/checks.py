"""Reads settings, and checks them before anything is loaded, besides the types and ranges of its values."""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, replace
from importlib import util
from pathlib import Path
from typing import Any, cast

import gymnasium as gym

from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.learning.answers import plan_rounds
from vlmrm_gym.learning.labelers import resolve_labeler
from vlmrm_gym.rewards.clip import CLIPFields
from vlmrm_gym.rewards.endpoint.client import read_key
from vlmrm_gym.rewards.endpoint.settings import EndpointSettings
from vlmrm_gym.rewards.learned import Preference
from vlmrm_gym.rewards.saved import SERVER, is_saved, names_code, names_server, read_saved
from vlmrm_gym.rewards.sources import parse_model_name
from vlmrm_gym.rewards.spec import RewardSpec
from vlmrm_gym.rewards.specification import KINDS, pinned_fields, resolve_reward
from vlmrm_gym.tools.environments import has_path
from vlmrm_gym.tools.train.algorithms import ON_POLICY, find_wrong_arguments, first_round, read_traits, with_defaults
from vlmrm_gym.tools.train.config import Config, RewardConfig
from vlmrm_gym.tools.train.config_file import (
    ConfigError,
    ConfigFile,
    Key,
    Problem,
    constructing,
    flatten,
    read_config_file,
    validate,
)

_RAY_RESOURCES = ("num_cpus", "num_gpus", "memory", "object_store_memory", "resources", "accelerator_type")
_RAY_RESOURCES += ("label_selector", "scheduling_strategy")
"""Options of Ray actors that say where they run. Others may name code, as `runtime_env` does."""


def _is_foreign(labeler: Any) -> bool:
    """Tell whether a labeler is code, or names a server."""
    values = labeler if isinstance(labeler, dict) else {"kind": labeler}
    kinds = [values.get(name) for name in ("kind", "name")]
    return any(":" in str(kind) or names_server(kind, values) for kind in kinds)


def read_settings(
    source: Path | None, changes: Mapping[Key, Any], trusted: Collection[Key] = (), *, trust_code: bool = False
) -> tuple[Config, ConfigFile]:
    """Read the configuration of a file, with changes and defaults filled in, and the file, which knows its lines.

    Code is run that is named by a key which is trusted, as the user's own flags are, or with `trust_code`. Raises a
    ConfigError if a setting cannot be used; unknown keys, types and ranges are reported all at once.
    """
    file = (ConfigFile() if source is None else read_config_file(source)).changed(changes)
    if source is not None and trusted:
        file = replace(file, name=f"{file.name} and the flags")
    with file.locating():
        if (name := file.config.reward.name) not in KINDS and is_saved(name):
            file = replace(file, values=_with_specification(file.values))
            trusted = {*trusted} - {("reward", "name")}
        config, problems = file.config, [*file.problems]
        if config.reward.cache_dir is not None:  # Hugging Face's, which is read once, when its libraries are imported
            os.environ["HF_HUB_CACHE"] = str(Path(config.reward.cache_dir).expanduser())
        if algorithm := config.rl.algorithm or (config.task and config.task.training.get("algorithm")):
            problems += find_wrong_arguments(replace(config.rl, algorithm=algorithm))
        if not trust_code:
            problems += find_named_code(config, trusted)
        if problems:
            raise ConfigError(problems)
        return complete(config), file


def _with_specification(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a reward that is the file of a specification by what that says.

    Raises an InputError if it cannot be read, or a field of it is given beside it.
    """
    reward = values["reward"]
    if given := [name for name in (*CLIPFields.__dataclass_fields__, "kwargs") if name in reward]:
        rule = f"cannot be passed beside the file of a reward, {reward['name']}. Change the file."
        raise ConfigError.of(f"reward.{given[0]}", rule)
    saved = read_saved(reward["name"], trust_code=True)  # `find_named_code` sees what it says
    kind, kwargs = saved["kind"], {name: one for name, one in saved.items() if name != "kind" and one is not None}
    own = RewardConfig.__dataclass_fields__.keys() - CLIPFields.__dataclass_fields__  # no file of a reward sets these
    known = {"clip": kwargs.keys() - own, "preference": kwargs.keys() & CLIPFields.__dataclass_fields__}.get(kind, ())
    shared = {name: kwargs.pop(name) for name in list(known)}
    return {**values, "reward": {**reward, "name": kind, **shared, **({"kwargs": kwargs} if kwargs else {})}}


def find_named_code(config: Config, trusted: Collection[Key] = ()) -> Iterator[Problem]:
    """Find keys that name code to run, or a server, except for some. Imports nothing."""
    reward, code = config.reward, "code that would be run"
    kwargs, options = reward.kwargs or {}, set(reward.ray_options or ())
    for name, what, is_named in (
        # Importing this package registers IDs. All other names of it, such as those of modules it imports, are code.
        ("env_name", code, ":" in (config.env_name or "").removeprefix("vlmrm_gym:")),
        ("env_kwargs", code, has_path(config.env_kwargs)),
        ("reward.name", code, names_code(reward.name, {})),
        ("reward.kwargs", code, names_code("", kwargs)),
        ("reward.kwargs", SERVER, names_server(reward.name, kwargs)),
        ("reward.labeler", f"{code}, or {SERVER}", _is_foreign(reward.labeler)),
        ("preferences.schedule", code, ":" in config.preferences.schedule),
        ("reward.combine_views", code, has_path(reward.combine_views)),
        ("reward.ray_options", code, not options <= set(_RAY_RESOURCES)),
    ):
        key = tuple(name.split("."))
        if is_named and key not in trusted:
            received = short_repr(flatten(config)[key])
            more = f" Without it, there may be {', '.join(_RAY_RESOURCES)}." * (name == "reward.ray_options")
            yield Problem.of(name, f"names {what}. Received {received}. If you trust it, pass --trust-code.{more}")


def complete(config: Config) -> Config:
    """Fill in defaults; a ConfigError unless environment and reward can be made, and rewards come before learning."""
    if config.env_name is None:
        raise ConfigError.of("env_name", "is missing. Say which environment; `vlmrm-gym tasks` lists them.")
    if config.track and util.find_spec("wandb") is None:
        rule = "needs Weights and Biases: `pip install 'vlmrm-gym[track]'`, or leave it out."
        raise ConfigError.of("track", rule)
    with constructing(config, "env_name"):
        traits = read_traits(config)
    with constructing(config, "reward.name"):
        specification = find_specification(config)
        if specification is not None and (pinned := pinned_fields(specification)):
            kwargs = {**(config.reward.kwargs or {}), **pinned}
            config = replace(config, reward=replace(config.reward, kwargs=kwargs))
    _check_labeler(config, learns=specification is not None and specification.learns)
    usual = "DQN" if isinstance(traits.action_space, gym.spaces.Discrete) else "SAC"
    if config.task is not None:
        training, wrong = validate({"rl": {"algorithm": usual, **config.task.training}})
        if wrong := wrong or find_wrong_arguments(training.rl):
            raise ConfigError.of("env_name", f"has a record whose `training` cannot be used. {wrong[0].message}")
    with constructing(config, "env_name"):
        config = with_defaults(config)
    if problems := find_wrong_arguments(config.rl):
        raise ConfigError(problems)
    if config.reward.name in ("clip", "preference"):
        with constructing(config, "reward.model"):
            parse_model_name(cast(Any, find_specification(config)).model)
    _check_length(config)
    if config.reward.labeler is not None:
        _check_rounds(config)
    return config


def find_specification(config: Config) -> RewardSpec | None:
    """Find the specification of the reward; None for ground_truth."""
    reward = config.reward_with_task_prompts
    settings, kwargs = reward.settings(), dict(reward.kwargs or {})
    named: tuple[Any, Any] = None, reward.kwargs
    if reward.name == "ground_truth":
        return None
    if reward.is_own:
        default = RewardConfig()
        settings = {name: value for name, value in settings.items() if value != getattr(default, name)}
        named = reward.name, reward.kwargs
    if reward.name == "preference":
        for name in [one.name for one in fields(Preference) if one.name in settings and one.name not in kwargs]:
            kwargs[name] = settings.pop(name)
        if isinstance(prompt := kwargs.get("prompt"), list) and len(prompt) == 1:
            kwargs["prompt"] = prompt[0]
    if reward.is_own and ":" not in reward.name:
        named = {**kwargs, "kind": reward.name}, None
    return resolve_reward(*named, settings.pop("prompt", None), options=settings)


def _check_labeler(config: Config, *, learns: bool) -> None:
    """Raise a ConfigError unless a reward that learns, and no other, has a labeler that can be made."""
    labeler, plan = config.reward.labeler, config.preferences
    if learns and labeler is None:
        rule = "is missing: the reward is learned from a labeler's answers. Say which, for example ground_truth; or, if"
        raise ConfigError.of("reward.labeler", f"{rule} it has been learned, `head`, its file.")
    if labeler is None:
        return
    if not learns:
        rule = f"must be left out: the reward {config.reward.name} is not learned. Received {short_repr(labeler)}."
        raise ConfigError.of("reward.labeler", rule)
    from vlmrm_gym.learning.fitting import FitOptions

    with constructing(config, "reward.labeler"):
        resolve_labeler(labeler)
    with constructing(config, "preferences.fit"):
        FitOptions(**(plan.fit or {}))
    with constructing(config, "preferences.schedule"):
        plan_rounds(plan.total, plan.pairs, plan.schedule)


def check_key(config: Config) -> None:
    """Raise a ConfigError if a labeler's server needs a key, and there is neither one nor a file with answers."""
    if config.reward.labeler is None or (config.preferences.answers and Path(config.preferences.answers).exists()):
        return
    labeler = resolve_labeler(config.reward.labeler)
    if isinstance(labeler, EndpointSettings):
        with constructing(config, "reward.labeler"):
            read_key(labeler.api_key_env)


def _check_rounds(config: Config) -> None:
    """Raise a ConfigError unless rounds, and what comes before them, have the steps that they need."""
    plan, first = config.preferences, first_round(config)
    n_steps, length = config.rl.n_steps or 0, config.rl.episode_length or 1
    if first >= n_steps:
        raise ConfigError.of("preferences.first", f"must be below `rl.n_steps`, {n_steps:,}. Received {first:,}.")
    last = first + (plan.num_rounds - 1) * (plan.every or 0)
    if last >= n_steps:
        rule = f"must be lower, or `preferences.pairs` higher: the last of {plan.num_rounds} rounds would be at step"
        raise ConfigError.of("preferences.every", f"{rule} {last:,} of {n_steps:,}. Received {plan.every}.")
    if plan.segment_length > length:
        rule = f"must be at most the length of an episode, {length}. Received {plan.segment_length}."
        raise ConfigError.of("preferences.segment_length", rule)
    # In the log, at most: off-policy rounds are at the end of a rollout.
    states = max(first, config.num_envs * length) + config.num_envs * (config.rl.train_freq or 1)
    segments = states * (length - plan.segment_length + 1) // length
    pairs = plan_rounds(plan.total, plan.pairs, plan.schedule)[0]
    if 2 * pairs > segments:
        rule = f"must be lower, or `preferences.first` higher: the first round asks about {pairs} pairs of {segments}"
        raise ConfigError.of("preferences.pairs", f"{rule} segments, and needs two for each. Received {plan.pairs}.")


def _check_length(config: Config) -> None:
    """Raise a ConfigError unless rewards arrive before learning starts, and that is before the training ends."""
    rl, n_steps, needed = config.rl, config.rl.n_steps or 0, config.min_steps_to_reward
    most = "one step" if config.reward.scoring == "step" else "two episodes" if config.reward.overlap else "one episode"
    one_each = f"{most} of every environment, {needed} steps"
    if n_steps < needed:
        rule = f"must be at least {one_each}: rewards come at their end. Received {n_steps}."
        raise ConfigError.of("rl.n_steps", rule)
    if rl.algorithm in ON_POLICY or (starts := rl.learning_starts) is None:
        return
    if starts >= n_steps:
        rule = f"must be below `rl.n_steps`, {n_steps}: nothing would be learned. Received {starts}."
        raise ConfigError.of("rl.learning_starts", rule)
    if config.reward.name != "ground_truth" and rl.train_freq is not None:
        # The first gradient step follows the first rollout that ends after more than `learning_starts` steps.
        steps = rl.train_freq * config.num_envs
        if (first := (starts // steps + 1) * steps) < needed:
            rule = f"must be at least {one_each}: before that, there are no rewards to learn from."
            rule = f"{rule} Received {starts}: learning starts after {first} steps."
            raise ConfigError.of("rl.learning_starts", rule)
