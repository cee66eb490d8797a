"""What the values of a configuration must be to each other: found before anything is loaded."""

import difflib
import inspect
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from vlmrm_gym import envs
from vlmrm_gym.checks import is_number
from vlmrm_gym.training.algorithms import ALGORITHMS, NOISES, algorithm_class, keys_of
from vlmrm_gym.training.config import LEGACY_NAMES, OF_ALL_ALGORITHMS, SUITED, TASKS_BY_NAME, Config, RLConfig, suited
from vlmrm_gym.training.config_file import Key, Problem

_NUMBERS: frozenset[Key] = frozenset(
    {
        *(("rl", key) for key in ("n_steps", "n_envs_per_worker", "episode_length", "learning_starts", "train_freq")),
        ("reward",),
        ("reward", "num_workers"),
        ("reward", "overlap"),
    }
)
"""What it depends on whether there is something to learn from in time."""


def conflicts(config: Config, wrong: Collection[Key] = ()) -> Iterator[Problem]:
    """What is missing, and what does not fit together.

    Args:
        config: Whose values are right by themselves.
        wrong: Keys whose values were not, and are left out: what depends on them is not looked at.
    """
    if config.track and find_spec("wandb") is None:
        yield Problem(
            ("track",), "`track` needs Weights and Biases: `pip install 'vlmrm-gym[track]'`, or leave it out."
        )
    if config.env_name is None:
        if ("env_name",) not in wrong:
            told = "`env_name` is missing. Say which environment; `vlmrm-gym tasks` lists them."
            files = [text for text in config.reward.target_prompts or () if text.endswith((".yaml", ".yml"))]
            if files:
                told += f" {files[-1]!r} was taken for a prompt: name the configuration file first."
            yield Problem(("env_name",), told)
        return
    if config.env_name not in TASKS_BY_NAME:
        near = difflib.get_close_matches(config.env_name, TASKS_BY_NAME, 1)
        meant = f"Did you mean {near[0]!r}?" if near else "`vlmrm-gym tasks` lists them."
        known = "a registered ID of this package, or one of " + ", ".join(LEGACY_NAMES)
        yield Problem(("env_name",), f"`env_name` must be {known}. Received {config.env_name!r}. {meant}")
        return
    if not {("reward",), ("reward", "name")} & set(wrong):
        yield from (problem for problem in _of_the_reward(config) if problem.key not in wrong)
    if not {("rl",), ("rl", "algorithm")} & set(wrong):
        found = _of_the_algorithm(config, numbers=not _NUMBERS & set(wrong))
        yield from (problem for problem in found if problem.key not in wrong)


def _of_the_reward(config: Config) -> Iterator[Problem]:
    task, reward = config.task, config.reward
    if reward.name == "clip" and reward.target_prompts is None and task.prompt is None:
        yield Problem(
            ("reward", "target_prompts"),
            f"`reward.target_prompts` is missing: {task.id} has no prompt of its own. Say what the agent should do.",
        )
    if not reward.textured and "textured" not in inspect.signature(getattr(envs, task.world)).parameters:
        yield Problem(("reward", "textured"), f"`reward.textured` must be true for {task.id}, which has one look only.")
    if reward.camera_config is not None and "camera" not in task.options:
        yield Problem(
            ("reward", "camera_config"),
            f"`reward.camera_config` is not for {task.id}, which is seen from one side only. Leave it out.",
        )
    elif reward.camera_config is not None:
        yield from _of_the_camera(reward.camera_config)
    if reward.name == "ground_truth" and (reward.task_reward_weight or reward.num_workers or reward.overlap):
        yield Problem(
            ("reward", "name"),
            "`reward.name` ground_truth is the environment's own reward: task_reward_weight, num_workers and overlap "
            "are for clip. Leave them out.",
        )
    if reward.devices and not reward.num_workers:
        yield Problem(
            ("reward", "devices"), "`reward.devices` is for workers. Set `reward.num_workers`, or use `reward.device`."
        )


def _of_the_camera(camera: Mapping[str, Any]) -> Iterator[Problem]:
    from vlmrm_gym.envs.humanoid_body import plain_model
    from vlmrm_gym.rendering.cameras import make_camera

    try:
        make_camera(plain_model(), camera)
    except (ValueError, TypeError) as error:
        yield Problem(("reward", "camera_config"), f"`reward.camera_config` is no camera: {error}")


def _of_the_algorithm(config: Config, *, numbers: bool) -> Iterator[Problem]:
    """With the numbers of steps and episodes, or without."""
    given, world = config.rl, config.task.world
    name = given.algorithm or SUITED[world].algorithm
    assert name is not None
    algorithm, discrete = ALGORITHMS[name], world == "CartPole"
    if not (algorithm.discrete if discrete else algorithm.continuous):
        fitting = ", ".join(name for name, one in ALGORITHMS.items() if (one.discrete if discrete else one.continuous))
        kind = "discrete" if discrete else "continuous"
        yield Problem(
            ("rl", "algorithm"),
            f"`rl.algorithm` must act in {kind} spaces, as {config.task.id} has: {fitting}. Received {name!r}.",
        )
        return
    for key in (one.name for one in fields(RLConfig)):
        if key not in OF_ALL_ALGORITHMS and getattr(given, key) is not None and key not in keys_of(name):
            yield Problem(("rl", key), f"`rl.{key}` is not for {name}. Leave it out.")
    if algorithm.on_policy and isinstance(given.ent_coef, str):
        yield Problem(("rl", "ent_coef"), f"`rl.ent_coef` must be a number for {name}. Received {given.ent_coef!r}.")
    if isinstance(given.ent_coef, float | int) and given.ent_coef < 0:
        yield Problem(("rl", "ent_coef"), f"`rl.ent_coef` must be at least 0. Received {given.ent_coef!r}.")
    steps = given.gradient_steps if "gradient_steps" in keys_of(name) else None
    if steps == 0 or (steps == -1 and algorithm.on_policy):
        yield Problem(("rl", "gradient_steps"), f"`rl.gradient_steps` must be at least 1 for {name}. Received {steps}.")
    yield from _of_the_noise(given.action_noise)
    yield from _of_the_policy(name, given.policy_kwargs or {})
    if numbers:
        yield from _of_the_numbers(suited(config), on_policy=algorithm.on_policy)


def _of_the_noise(noise: Mapping[str, Any] | None) -> Iterator[Problem]:
    if noise is None:
        return
    known = NOISES.get(str(noise.get("name")), frozenset())
    numbers = {key: value for key, value in noise.items() if key != "name"}
    finite = all(is_number(value) and math.isfinite(value) for value in numbers.values())
    sigma, hold = numbers.get("sigma", 0), numbers.get("hold", 1)
    if not (known and known >= set(numbers) and finite and sigma >= 0 and isinstance(hold, int) and hold >= 1):
        kinds = ", ".join(f"{name} ({', '.join(sorted(keys))})" for name, keys in NOISES.items())
        yield Problem(
            ("rl", "action_noise"),
            f"`rl.action_noise` must have a name, and may have numbers: {kinds}; sigma is at least 0, hold an integer "
            f"of at least 1. Received {dict(noise)!r}.",
        )


def _of_the_policy(algorithm: str, options: Mapping[str, Any]) -> Iterator[Problem]:
    # Spaces and learning rate come from elsewhere.
    known = list(inspect.signature(algorithm_class(algorithm).policy_aliases["MlpPolicy"]).parameters)[3:]
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(str(option), known, 1)
            meant = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(known)}."
            yield Problem(
                ("rl", "policy_kwargs"), f"`rl.policy_kwargs`: the policy of {algorithm} has no {option!r}. {meant}"
            )


def _of_the_numbers(config: Config, *, on_policy: bool) -> Iterator[Problem]:
    rl, num_envs = config.rl, config.num_envs
    assert rl.n_steps is not None
    needed = config.steps_to_rewards
    one_each = f"{'two episodes' if config.reward.overlap else 'one episode'} of every environment"
    if rl.n_steps < needed:
        yield Problem(
            ("rl", "n_steps"),
            f"`rl.n_steps` must be at least {one_each}, {needed}: rewards come when episodes end. "
            f"Received {rl.n_steps}.",
        )
        return
    if on_policy:
        default = inspect.signature(algorithm_class(str(rl.algorithm))).parameters["n_steps"].default
        rollout = num_envs * (rl.train_freq or default)
        if rl.n_steps < rollout:
            yield Problem(
                ("rl", "train_freq"),
                f"`rl.train_freq`, the length of {rl.algorithm}'s rollouts, must be at most {rl.n_steps // num_envs}: "
                f"{num_envs} environments have {rl.n_steps} steps. Received {rollout // num_envs}.",
            )
        return
    if rl.learning_starts is not None and rl.learning_starts >= rl.n_steps:
        yield Problem(
            ("rl", "learning_starts"),
            f"`rl.learning_starts` must be below `rl.n_steps`, {rl.n_steps}: nothing would be learned. "
            f"Received {rl.learning_starts}.",
        )
        return
    if config.reward.name != "clip":
        return
    if rl.learning_starts is None or rl.train_freq is None:
        return
    # The first gradient step follows the first rollout that ends after more than `learning_starts` steps.
    rollout = rl.train_freq * num_envs
    first = (rl.learning_starts // rollout + 1) * rollout
    if first < needed:
        yield Problem(
            ("rl", "learning_starts"),
            f"`rl.learning_starts` must be at least {one_each}, {needed} steps: before that, nothing is scored that "
            f"could be learned from. Received {rl.learning_starts}, with which learning starts after {first} steps.",
        )
