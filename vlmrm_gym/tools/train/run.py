"""Starting and resuming runs."""

import hashlib
import json
import math
import shutil
import signal
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger

from vlmrm_gym._util import __version__
from vlmrm_gym._util.errors import close_on_error
from vlmrm_gym._util.files import atomic_write, atomic_write_text
from vlmrm_gym._util.system import read_versions
from vlmrm_gym._util.untrusted import read_file
from vlmrm_gym._util.validation import fields_without_effect, short_repr
from vlmrm_gym.rewards.clip import EncoderFields
from vlmrm_gym.rewards.endpoint.settings import EndpointSettings
from vlmrm_gym.rewards.pictures import as_pictures
from vlmrm_gym.rewards.saved import MAX_HEAD, head_file, map_files
from vlmrm_gym.sb3 import VLMVecEnv
from vlmrm_gym.scoring.options import FileOptions
from vlmrm_gym.tools.train.algorithms import (
    ON_POLICY,
    algorithm_class,
    algorithm_options,
    find_setting,
    first_round,
    read_traits,
)
from vlmrm_gym.tools.train.callbacks import RunCallback
from vlmrm_gym.tools.train.checks import find_specification
from vlmrm_gym.tools.train.config import Config
from vlmrm_gym.tools.train.config_file import ConfigError, constructing, flatten, read_config, to_yaml
from vlmrm_gym.tools.train.environments import make_envs
from vlmrm_gym.tools.train.evaluation import load_weights
from vlmrm_gym.tools.train.outputs import TensorBoardWriter, plot_learning_curve
from vlmrm_gym.tools.train.preferences import RewardLearning
from vlmrm_gym.tools.train.resumable import RunProgress
from vlmrm_gym.tools.train.run_folder import RunError, RunFolder
from vlmrm_gym.tools.train.signals import handling

RESUME_OVERRIDABLE = (
    *("base_path", "run_name", "description", "tags", "track", "rl.n_steps", "rl.device"),
    *(f"logging.{name}_freq" for name in ("checkpoint", "video", "tensorboard")),
    *("reward.cache_dir", "reward.labeler"),
    *(f"reward.{one.name}" for one in fields(FileOptions) if one.metadata.get("resumable")),
    *(f"reward.kwargs.{name}" for name in ("cache", "base_url", *fields_without_effect(EndpointSettings))),
)
"""Keys that may change when a run is resumed; `rl.n_steps` may only grow."""


def start(config: Config, folder: RunFolder) -> None:
    """Train in a new folder, which is made once environments, reward and algorithm are. Defaults are filled in.

    After a signal `Interrupted` is raised, once a checkpoint is written.
    """
    folder.check_new()
    with ExitStack() as running:
        envs, model = _make(config)
        running.callback(envs.close)
        folder.create()
        running.enter_context(folder.locked())
        try:
            config = _with_own_files(config, folder)
            learning = _begin(config, folder, envs, running)
        except BaseException:
            shutil.rmtree(folder.path)  # nothing has been trained
            raise
        _learn(config, folder, envs, model, learning, RunProgress())


def resume(config: Config, folder: RunFolder) -> None:
    """Resume a run from its newest checkpoint; from the beginning if there is none. Raises as `start`."""
    with folder.locked(), ExitStack() as running:
        checkpoint, progress, counters = folder.newest_checkpoint(), RunProgress(), {}
        if checkpoint is not None:
            state = json.loads((checkpoint / "state.json").read_text())
            _check_same(read_config(state["config"], "its configuration", folder.path).config, config, folder)
            progress, counters = RunProgress(**state["progress"]), state["counters"]
        envs, model = _make(config, checkpoint)
        running.callback(envs.close)
        vars(model).update(counters)
        learning = _begin(config, folder, envs, running)
        if learning is not None and checkpoint is not None:
            learning.restore(checkpoint / "preferences.zip", model)
        folder.rewind(checkpoint)
        _learn(config, folder, envs, model, learning, progress)


def _begin(config: Config, folder: RunFolder, envs: VLMVecEnv, running: ExitStack) -> RewardLearning | None:
    """Write the configuration, begin to track, and make what learns the reward; None if no reward is learned."""
    learning = None
    if config.reward.labeler is not None:
        learning = RewardLearning(config, folder, envs)
        running.callback(learning.learner.answers.close)
    atomic_write_text(folder.config_file, to_yaml(config, folder.path))
    specification = find_specification(config)
    for name, text in ({} if specification is None else specification.files).items():
        (folder.path / name).write_text(text, encoding="utf-8")
    if config.track:
        _track(config, folder, running)
    return learning


def _with_own_files(config: Config, folder: RunFolder) -> Config:
    """The configuration with pictures and heads in the run's folder, in place of those that it names."""

    def keep(one: str) -> str:
        if (head := head_file(one)).suffix == ".safetensors":
            content = read_file(head, MAX_HEAD)
            path = folder.path / "heads" / f"{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
        else:
            (picture,) = as_pictures("goal_images", one)
            content, path = picture.content, folder.path / "pictures" / f"{picture.digest}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return str(path)

    return replace(config, reward=replace(config.reward, **map_files(vars(config.reward), keep)))


def _check_same(before: Config, config: Config, folder: RunFolder) -> None:
    """Raise a `RunError` unless a run with one configuration can be resumed with another."""
    was, now = _dotted(before), _dotted(config)
    other = [name for name in {**was, **now} if now.get(name) != was.get(name) and name not in RESUME_OVERRIDABLE]
    if now["rl.n_steps"] < was["rl.n_steps"]:
        other.append("rl.n_steps")
    if other:
        changes = "; ".join(
            f"`{name}` is {short_repr(now.get(name))}, was {short_repr(was.get(name))}" for name in other
        )
        raise RunError(f"The run {folder.path} has another configuration: {changes}. Start a new run for that.")


def _dotted(config: Config) -> dict[str, Any]:
    values = {".".join(key): value for key, value in flatten(config).items()}
    kwargs = values.pop("reward.kwargs") or {}
    return values | {f"reward.kwargs.{name}": value for name, value in kwargs.items()}


def _make(config: Config, checkpoint: Path | None = None) -> tuple[VLMVecEnv, BaseAlgorithm]:
    """Make the environments and the algorithm, with the weights and transitions of a checkpoint."""
    rl = config.rl
    if rl.device.startswith("cuda") and not torch.cuda.is_available():  # Stable-Baselines3 would take the CPU
        rule = f"must be a device of this machine, which has no CUDA. Received {short_repr(rl.device)}."
        raise ConfigError.of("rl.device", rule)
    envs = make_envs(config, config.num_envs, for_training=True)
    with close_on_error([envs]):
        with constructing(config, "rl"):
            envs = VLMVecEnv(envs, success_threshold=config.success_threshold)
            steps = 0 if checkpoint is None else int(checkpoint.name)
            kind, options = algorithm_class(rl.algorithm or ""), algorithm_options(config, envs, steps)
            model = kind(rl.policy_name or "", envs, seed=config.seed, **options)  # pyright: ignore[reportCallIssue]
        if checkpoint is not None:
            load_weights(model, checkpoint / "model.zip")
            if (buffer := getattr(model, "replay_buffer", None)) is not None:
                with np.load(checkpoint / "replay_buffer.npz", allow_pickle=False) as stored:
                    buffer.load_state_dict(stored)
    return envs, model


def _learn(
    config: Config,
    folder: RunFolder,
    envs: VLMVecEnv,
    model: BaseAlgorithm,
    learning: RewardLearning | None,
    progress: RunProgress,
) -> None:
    """Train to the end. TensorBoard events after the progress so far are purged."""
    left = (config.rl.n_steps or 0) - model.num_timesteps
    _log_versions(folder, config, step=model.num_timesteps)
    callback = RunCallback(config, folder, envs, learning, progress)
    callbacks = [callback] if learning is None else [learning, callback]
    with closing(TensorBoardWriter(folder.path, progress.step + 1)) as output:
        model.set_logger(Logger(str(folder.path), [output]))
        try:
            with handling(callback.receive_signal, signal.SIGINT, signal.SIGTERM):
                if left > 0:
                    model.learn(left, callbacks, log_interval=None, reset_num_timesteps=False)  # pyright: ignore[reportArgumentType]
        finally:
            callback.close()
    reward, rows = config.reward, folder.metrics()
    what = "its own reward" if reward.name == "ground_truth" else "; ".join(reward.prompt or [reward.name])
    title = f"{config.id}: {what}"
    atomic_write(folder.path / "learning_curve.png", lambda path: plot_learning_curve(rows, path, title=title))


def _track(config: Config, folder: RunFolder, running: ExitStack) -> None:
    """Mirror TensorBoard to Weights and Biases; a resumed run keeps its ID there."""
    import wandb

    try:
        run = wandb.init(
            project="vlmrm_gym",
            name=folder.path.name,
            id=hashlib.blake2b(str(folder.path.resolve()).encode(), digest_size=8).hexdigest(),
            resume="allow",
            dir=folder.path,
            config=_dotted(config),
            tags=config.tags,
            notes=config.description,
            sync_tensorboard=True,
        )
    except wandb.Error as error:
        raise RunError(f"`track` is on, and Weights and Biases cannot begin: {error} Or leave `track` out.") from error
    running.push(lambda error, *_: run.finish(exit_code=0 if error is None else 1))


def _log_versions(folder: RunFolder, config: Config, *, step: int) -> None:
    """Add this start to versions.json."""
    path = folder.path / "versions.json"
    starts: list[Any] = []
    with suppress(OSError, ValueError):  # missing at the first start, or damaged
        starts = json.loads(path.read_text())
    model = config.reward.model if config.reward.name in ("clip", "preference") else None
    starts.append({"step": step, "vlmrm_gym": __version__, **read_versions(), "model": model})
    atomic_write_text(path, json.dumps(starts, indent=2))


def plan_training(config: Config) -> Mapping[str, str]:
    """Describe the plan of a training with this configuration, which has its defaults filled in, line by line."""
    rl, reward, specification = config.rl, config.reward, find_specification(config)
    plan = {
        "environments": f"{config.num_envs} x {config.id}, episodes of {rl.episode_length} steps",
        "agent": f"{rl.algorithm}, {rl.n_steps:,} steps over all environments, seed {config.seed}",
        "updates": _describe_updates(config),
    }
    if specification is not None:
        in_workers = reward.num_workers and specification.in_workers
        where = f"{reward.num_workers} {reward.backend} workers" if in_workers else "the process that trains"
        share = f", one state in {reward.score_every}" if reward.score_every > 1 else ""
        what = " ".join([reward.name, *map(short_repr, reward.prompt or []), *(reward.goal_images or [])])
        plan["reward"] = f"{what}{share}, scored by {where}"
        if isinstance(specification, EncoderFields) and specification.model not in (None, "tiny"):
            plan["download"] = f"the weights of {specification.model}, unless they are on this machine"
    if reward.labeler is not None:
        preferences, first = config.preferences, first_round(config)
        rounds = f"{preferences.num_rounds} rounds, the first after {first:,} steps, one every {preferences.every:,}"
        plan["comparisons"] = f"{preferences.total:,} pairs in {rounds}; answered by {reward.labeler}"
    if rl.algorithm not in ON_POLICY:
        traits = read_traits(config)
        # The observations before and after, the action, the reward, the end and the time limit of all transitions.
        size = _value_bytes(traits.observation_space) * 2 + _value_bytes(traits.action_space) + 12
        plan["memory"] = f"{find_setting(rl, 'buffer_size') * size / 1e9:.2f} GB for the replay buffer when it is full"
        if reward.labeler is not None:
            plan["memory"] += " and more for features, 4 bytes for each number of an embedding"
        plan["memory"] += f", up to {reward.max_pending_bytes / 1e9:.2f} GB for states that wait to be scored"
    return plan


def _describe_updates(config: Config) -> str:
    """Count the gradient steps, and those for each step of the environments."""
    rl, n_steps = config.rl, config.rl.n_steps or 0
    frequency, each = find_setting(rl, "train_freq"), find_setting(rl, "gradient_steps")
    every = (frequency[0] if isinstance(frequency, tuple) else frequency) * config.num_envs
    if rl.algorithm in ON_POLICY:  # A2C has one epoch
        return f"{each or 1} epochs over each of {math.ceil(n_steps / every):,} rollouts of {every:,} steps"
    each = every if each == -1 else each
    starts = rl.learning_starts or 0
    per_step = f"{each / every:g} for each step after the first {starts:,}"
    return f"about {max(0, n_steps - starts) // every * each:,} gradient steps: {per_step}"


def _value_bytes(space: Any) -> int:
    parts = space.values() if isinstance(space, spaces.Dict) else [space]
    return sum(np.asarray(part.sample()).nbytes for part in parts)
