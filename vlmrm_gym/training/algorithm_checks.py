"""Checks of the rl section of a configuration."""

import difflib
import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, get_origin, get_type_hints

import gymnasium as gym
import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from vlmrm_gym.tasks import Task
from vlmrm_gym.training.algorithms import ALGORITHMS, NOISES, accepted_keys, algorithm_class
from vlmrm_gym.training.config import NON_ALGORITHM_KEYS, Config, RLConfig
from vlmrm_gym.training.config_file import Problem
from vlmrm_gym.training.defaults import default_algorithm, default_policy, episode_length, is_discrete, with_defaults
from vlmrm_gym.training.external_envs import read_traits
from vlmrm_gym.validation import is_number, short_repr, truncate


def check_algorithm(config: Config, *, lengths: bool) -> Iterator[Problem]:
    """Find what is wrong with the algorithm.

    Args:
        config: A configuration whose environment can be made.
        lengths: Whether to check numbers of steps and episodes as well.
    """
    if (problem := _check_actions(config)) is not None:
        yield problem
        return
    rl, name = config.rl, default_algorithm(config)
    for key in (field.name for field in fields(RLConfig)):
        if key not in NON_ALGORITHM_KEYS and getattr(rl, key) is not None and key not in accepted_keys(name):
            yield Problem.of(f"rl.{key}", f"is not for {name}. Leave it out.")
    if rl.start_near_goal and not _has_curriculum(config.task):
        rule = "is for humanoid tasks, and others for which states on the way to the goal are known"
        yield Problem.of("rl.start_near_goal", f"{rule}; not for {config.id}.")
    yield from _check_updates(rl, name)
    yield from _check_noise(rl.action_noise)
    yield from _check_policy(name, default_policy(config), rl.policy_kwargs or {})
    if episode_length(config) is None:
        yield Problem.of(
            "rl.episode_length",
            f"is missing: {config.id} has no time limit of its own. Say after how many steps episodes are truncated.",
        )
    elif lengths and (problem := _check_lengths(with_defaults(config))) is not None:
        yield problem


def _has_curriculum(task: Task | None) -> bool:
    states = task.make_states() if task is not None and "start_near_goal" in task.kwargs else None
    return states is not None and states.on_the_way(np.zeros(1)) is not None


def _check_actions(config: Config) -> Problem | None:
    """Check that the algorithm acts in the environment's action space."""
    name, kind = default_algorithm(config), "discrete" if is_discrete(config) else "continuous"
    if kind == "continuous":
        space = read_traits(config.id, config.env_kwargs).action_space
        if not isinstance(space, gym.spaces.Box):
            rule = f"must have discrete or continuous actions. Received {config.id!r}, which has {space}."
            return Problem.of("env_name", rule)
    fitting = [name for name, one in ALGORITHMS.items() if getattr(one, kind)]
    if name in fitting:
        return None
    rule = f"must act in {kind} spaces, as {config.id} has: {', '.join(fitting)}. Received {name!r}."
    return Problem.of("rl.algorithm", rule)


def _check_updates(rl: RLConfig, name: str) -> Iterator[Problem]:
    """Check the entropy coefficient and gradient steps, whose ranges depend on the algorithm."""
    on_policy = ALGORITHMS[name].on_policy
    if on_policy and isinstance(rl.ent_coef, str):
        yield Problem.of("rl.ent_coef", f"must be a number for {name}. Received {short_repr(rl.ent_coef)}.")
    if isinstance(rl.ent_coef, float | int) and rl.ent_coef < 0:
        yield Problem.of("rl.ent_coef", f"must be at least 0. Received {rl.ent_coef!r}.")
    steps = rl.gradient_steps if "gradient_steps" in accepted_keys(name) else None
    if steps == 0 or (steps == -1 and on_policy):
        yield Problem.of("rl.gradient_steps", f"must be at least 1 for {name}. Received {steps}.")


def _check_noise(noise: Mapping[str, Any] | None) -> Iterator[Problem]:
    if noise is None:
        return
    name = str(noise.get("name"))
    known = NOISES.get(name, frozenset())
    numbers = {key: value for key, value in noise.items() if key != "name"}
    finite = all(is_number(value) and math.isfinite(value) for value in numbers.values())
    sigma, dt, hold = numbers.get("sigma", 0), numbers.get("dt", 0), numbers.get("hold", 1)
    in_range = finite and sigma >= 0 and dt >= 0 and isinstance(hold, int) and hold >= 1
    if not (known and known >= set(numbers) and in_range):
        kinds = ", ".join(f"{name} ({', '.join(sorted(keys))})" for name, keys in NOISES.items())
        yield Problem.of(
            "rl.action_noise",
            f"must have a name, and may have numbers: {kinds}; sigma and dt are at least 0, hold an integer of at "
            f"least 1. Received {short_repr(noise)}.",
        )


def _check_policy(algorithm: str, policy_name: str, kwargs: Mapping[str, Any]) -> Iterator[Problem]:
    policy = algorithm_class(algorithm).policy_aliases[policy_name]
    known = list(inspect.signature(policy).parameters)[3:]  # the algorithm passes spaces and learning rate
    types = get_type_hints(policy.__init__)
    for name, value in kwargs.items():
        if name not in known:
            near = difflib.get_close_matches(truncate(name), known, 1)
            advice = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(known)}."
            message = f"`rl.policy_kwargs`: the policy of {algorithm} has no {short_repr(name)}. {advice}"
        elif (rule := _broken_rule(name, value, types[name], algorithm)) is not None:
            message = f"`rl.policy_kwargs.{truncate(name)}` {rule}. Received {short_repr(value)}."
        else:
            continue
        yield Problem(("rl", "policy_kwargs", name), message)


_MAXIMA = {"n_critics": 100, "n_quantiles": 10_000}
_MAX_LAYERS, _MAX_UNITS = 100, 65_536


def _broken_rule(name: str, value: Any, kind: Any, algorithm: str) -> str | None:
    """The rule that a policy argument breaks, if any.

    Args:
        name: Name of the argument.
        value: Value of the argument.
        kind: The type that the policy declares.
        algorithm: Algorithm that the policy belongs to.
    """
    if get_origin(kind) is type:
        return "must be a class, which a configuration cannot name. Leave it out"
    if name == "net_arch":
        return None if value is None else _broken_rule_of_layers(value, algorithm)
    if name == "features_extractor_kwargs":
        return "must be left out: features extractors of configurations have no arguments" if value else None
    try:
        TypeAdapter(kind, config=ConfigDict(strict=True, allow_inf_nan=False)).validate_python(value)
    except ValidationError as error:
        return error.errors()[0]["msg"].replace("Input should", "must")
    if name in _MAXIMA and not 1 <= value <= _MAXIMA[name]:
        return f"must be from 1 to {_MAXIMA[name]:,}"
    return _broken_rule_of_adam(value) if name == "optimizer_kwargs" else None


def _broken_rule_of_layers(value: Any, algorithm: str) -> str | None:
    rule = f"must be a list of at most {_MAX_LAYERS} layer sizes, integers from 1 to {_MAX_UNITS:,}"
    if algorithm in ("DQN", "QRDQN"):
        return None if _are_layers(value) else rule
    critic = "vf" if ALGORITHMS[algorithm].on_policy else "qf"
    both = isinstance(value, dict) and set(value) == {"pi", critic} and all(map(_are_layers, value.values()))
    return None if both or _are_layers(value) else f"{rule}, or a mapping of pi and {critic} to such lists"


def _are_layers(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MAX_LAYERS
        and all(type(size) is int and 1 <= size <= _MAX_UNITS for size in value)
    )


def _broken_rule_of_adam(kwargs: Mapping[str, Any] | None) -> str | None:
    """The rule that the arguments of Adam, the optimiser of all policies, break, if any."""
    from torch import nn, optim

    try:
        optim.Adam([nn.Parameter()], lr=1e-3, **(kwargs or {}))
    except (TypeError, ValueError, RuntimeError) as error:
        return f"does not fit the optimiser Adam: {truncate(str(error))}"
    return None


def _check_lengths(config: Config) -> Problem | None:
    """Check that rewards arrive before learning starts, and learning starts before the training ends."""
    rl, num_envs, needed = config.rl, config.num_envs, config.min_steps_to_reward
    assert rl.n_steps is not None
    one_each = f"{'two episodes' if config.reward.overlap else 'one episode'} of every environment"
    if rl.n_steps < needed:
        rule = f"must be at least {one_each}, {needed}: rewards come when episodes end. Received {rl.n_steps}."
        return Problem.of("rl.n_steps", rule)
    if ALGORITHMS[str(rl.algorithm)].on_policy:
        default = inspect.signature(algorithm_class(str(rl.algorithm))).parameters["n_steps"].default
        rollout = rl.train_freq or default
        if rl.n_steps < num_envs * rollout:
            length = f"`rl.train_freq`, the length of {rl.algorithm}'s rollouts,"
            rule = f"must be at most {rl.n_steps // num_envs}: {num_envs} environments have {rl.n_steps} steps."
            return Problem(("rl", "train_freq"), f"{length} {rule} Received {rollout}.")
        return None
    starts, frequency = rl.learning_starts, rl.train_freq
    if starts is not None and starts >= rl.n_steps:
        rule = f"must be below `rl.n_steps`, {rl.n_steps}: nothing would be learned. Received {starts}."
        return Problem.of("rl.learning_starts", rule)
    if config.reward.name == "ground_truth" or starts is None or frequency is None:
        return None
    # The first gradient step follows the first rollout that ends after more than `learning_starts` steps.
    first = (starts // (frequency * num_envs) + 1) * frequency * num_envs
    if first >= needed:
        return None
    return Problem.of(
        "rl.learning_starts",
        f"must be at least {one_each}, {needed} steps: before that, there are no rewards to learn from. "
        f"Received {starts}, with which learning starts after {first} steps.",
    )
