"""Checks of the reward section of a configuration, without loading a model."""

import re
from collections.abc import Collection, Iterator
from contextlib import closing
from importlib.util import find_spec

from vlmrm_gym.capture import choose_cameras
from vlmrm_gym.registration import make_base_env
from vlmrm_gym.rewards.clip_options import CLIPFields
from vlmrm_gym.rewards.specification import resolve_reward
from vlmrm_gym.rewards.views import CombineViews
from vlmrm_gym.scoring.sparse import SparseScoring
from vlmrm_gym.scoring.timeouts import Timeouts
from vlmrm_gym.training.config import Config, RewardConfig
from vlmrm_gym.training.config_file import Key, Problem
from vlmrm_gym.validation import short_repr, truncate


def check_reward(config: Config, wrong: Collection[Key] = ()) -> Iterator[Problem]:
    """Find errors in the reward section. Imports what `reward.name` and `reward.combine_views` may name.

    Args:
        config: The configuration.
        wrong: Keys that are known to be wrong. Nothing that `reward.combine_views` names is imported if it is one.
    """
    reward = config.reward
    if reward.name == "clip":
        yield from _check_clip(config, wrong)
    elif reward.is_own:
        yield from _check_unused_clip_fields(reward)
        yield from _check_own(reward)
    elif reward.task_reward_weight or reward.num_workers or reward.overlap or reward.is_sparse:
        yield Problem.of(
            "reward.name",
            "ground_truth is the environment's own reward: task_reward_weight, num_workers, overlap, score_every and "
            "score_tolerance are for other rewards. Leave them out.",
        )
    if reward.kwargs and not reward.is_own:
        yield Problem.of("reward.kwargs", f"is not for {reward.name}, which has keys of its own.")
    yield from _check_scene(config, check_views=("reward", "combine_views") not in wrong)
    if reward.devices and not reward.num_workers:
        yield Problem.of("reward.devices", "is for workers. Set `reward.num_workers`, or use `reward.device`.")
    yield from _check_backend(reward)
    try:
        Timeouts.of(reward.worker_timeouts)
    except ValueError as error:
        yield _renamed("worker_timeouts", error)
    try:
        SparseScoring(reward.score_every, reward.score_tolerance)
    except ValueError as error:
        yield _renamed("score_every", error)


def _check_backend(reward: RewardConfig) -> Iterator[Problem]:
    if reward.backend == "ray" and find_spec("ray") is None:
        yield Problem.of("reward.backend", "ray needs Ray: `pip install 'vlmrm-gym[ray]'`.")
    if reward.ray_options is not None and reward.backend != "ray":
        yield Problem.of("reward.ray_options", "needs `reward.backend: ray`.")
    if reward.devices and reward.backend == "ray":
        rule = "is for `reward.backend: process`. Set `reward.ray_options`, such as {num_gpus: 1}."
        yield Problem.of("reward.devices", rule)


def _check_clip(config: Config, wrong: Collection[Key]) -> Iterator[Problem]:
    reward = config.reward_with_task_prompts
    if reward.prompt is None:
        rule = f"is missing: {config.id} has no prompt of its own. Say what the agent should do."
        yield Problem.of("reward.prompt", rule)
    elif not {("reward", name) for name in reward.clip_fields} & set(wrong):
        try:
            CLIPFields(**reward.clip_fields)
        except ValueError as error:
            yield _clip_problem(error)
    if reward.model != "tiny":
        from vlmrm_gym.rewards import sources

        try:
            sources.parse_model_name(reward.model)
        except (ValueError, OSError) as error:
            yield _renamed("model", error)


def _clip_problem(error: ValueError) -> Problem:
    """A problem of two fields of CLIP together: of the first that the message names."""
    named = [name for name in re.findall(r"`(\w+)`", str(error)) if name in RewardConfig().clip_fields]
    message = str(error)
    for name in named:
        message = message.replace(f"`{name}`", f"`reward.{name}`")
    return Problem(("reward", named[0]), truncate(message, 1_000))


def _check_unused_clip_fields(reward: RewardConfig) -> Iterator[Problem]:
    """Report fields of CLIP used with another reward. With ground_truth, as in published files, they are ignored."""
    default = RewardConfig()
    for name, value in default.clip_fields.items():
        if getattr(reward, name) != value:
            yield Problem.of(
                f"reward.{name}",
                f"is for `reward.name` clip, not for {short_repr(reward.name)}. Leave it out, or put what your reward "
                "needs into `reward.kwargs`.",
            )


def _check_own(reward: RewardConfig) -> Iterator[Problem]:
    """Check that a reward of one's own, or of another kind, exists, and takes its keyword arguments or fields."""
    try:
        resolve_reward(**reward.arguments())
    except (ValueError, TypeError) as error:
        message = str(error)
        if "`reward_kwargs`" in message:
            yield _renamed("kwargs", error, "reward_kwargs")
        elif ":" in reward.name and message.startswith("`reward` "):
            yield _renamed("name", error, "reward")
        else:  # of a field
            message = message.removeprefix("`reward`: ")
            yield Problem(("reward", "kwargs"), truncate(f"`reward.kwargs` is not valid: {message}", 1_000))


def _check_scene(config: Config, *, check_views: bool) -> Iterator[Problem]:
    """Check cameras and textures, which only some tasks support."""
    task, reward = config.task, config.reward
    has_textures = task is not None and "textured" in task.kwargs
    if not reward.textured and not has_textures:
        yield Problem.of("reward.textured", f"must be true for {config.id}, which has only one look.")
    if reward.camera is None and reward.combine_views is not None:
        rule = "is for several cameras. Set `reward.camera` to a list of them or to a named set, or leave it out."
        yield Problem.of("reward.combine_views", rule)
    if reward.camera is None or task is None:  # other packages' environments check cameras on construction
        return
    try:
        with closing(make_base_env(task, task.episode_length)) as env:
            cameras = choose_cameras(env, reward.camera)
    except (ValueError, TypeError) as error:
        yield Problem(("reward", "camera"), f"`reward.camera` is not valid: {truncate(str(error), 1_000)}")
    else:
        if cameras is None:
            yield Problem.of("reward.camera", f"is not for {config.id}, which has a fixed view. Leave it out.")
        elif check_views and reward.combine_views is not None:
            try:
                CombineViews(reward.combine_views, len(cameras))
            except ValueError as error:
                yield _renamed("combine_views", error)


def _renamed(key: str, error: Exception, parameter: str | None = None) -> Problem:
    """Turn a library error into a problem of this section: its parameter is `reward.<key>` in a configuration."""
    message = str(error).replace(f"`{parameter or key}`", f"`reward.{key}`")
    return Problem(("reward", key), truncate(message, 1_000))
