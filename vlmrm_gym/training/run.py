"""A training, from its configuration to its folder; and one that goes on."""

import hashlib
import importlib.metadata
import json
import os
import pickle
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger, TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter

import vlmrm_gym
from vlmrm_gym.training.algorithms import ALGORITHMS, algorithm_class, algorithm_options
from vlmrm_gym.training.callbacks import Interrupts, RunCallback
from vlmrm_gym.training.config import Config
from vlmrm_gym.training.config_file import Key, flat, to_yaml
from vlmrm_gym.training.environments import make_envs
from vlmrm_gym.training.plots import plot_learning_curve
from vlmrm_gym.training.resumable import ResumableVecEnv, restore_environments
from vlmrm_gym.training.run_folder import RunError, RunFolder, write_whole

FREE_TO_CHANGE: tuple[Key, ...] = (
    ("base_path",),
    ("run_name",),
    ("description",),
    ("tags",),
    ("track",),
    ("reward", "cache_dir"),
    ("reward", "device"),
    ("reward", "devices"),
    ("rl", "n_steps"),
    ("rl", "device"),
    ("logging", "checkpoint_freq"),
    ("logging", "video_freq"),
    ("logging", "tensorboard_freq"),
)
"""What a run that goes on may have otherwise than before; no fewer steps, though."""

_PACKAGES = ("gymnasium", "mujoco", "numpy", "open_clip_torch", "sb3_contrib", "stable_baselines3", "torch")


def start(config: Config, folder: RunFolder) -> None:
    """Train, into a new folder.

    Args:
        config: `suited`.
        folder: Of the run; it has just been made.

    Raises:
        RunError: The environments, their reward or the tracking cannot be made; the folder is removed again.
        Interrupted: By Ctrl-C or SIGTERM, after a checkpoint.
        Exception: What scoring or training raises.
    """
    with ExitStack() as running:
        try:
            write_whole(folder.config_file, lambda path: path.write_text(to_yaml(config), encoding="utf-8"))
            envs, model = _make(config)
            running.callback(envs.close)
            running.enter_context(_tracked(config, folder))
        except BaseException:
            shutil.rmtree(folder.path)  # nothing has begun
            raise
        _learn(config, folder, envs, model)


def resume(config: Config, folder: RunFolder) -> None:
    """Go on with a run from its newest checkpoint; from the beginning if there is none.

    Args:
        config: `suited`; may differ from the run's in what is `FREE_TO_CHANGE`.
        folder: Of the run.

    Raises:
        RunError: The configuration is another one, or the checkpoint is damaged.
        Interrupted, Exception: As `start`.
    """
    checkpoint = folder.newest_checkpoint()
    state = None if checkpoint is None else pickle.loads((checkpoint / "state.pkl").read_bytes())
    if state is not None:
        _check_same(state["config"], config, folder)
    envs, model = _make(config, checkpoint)
    with closing(envs), _tracked(config, folder):
        write_whole(folder.config_file, lambda path: path.write_text(to_yaml(config), encoding="utf-8"))
        folder.go_back(checkpoint)
        if state is None:
            _learn(config, folder, envs, model, purge_step=0)
        else:
            restore_environments(model, envs, state["training"])
            _learn(config, folder, envs, model, state, purge_step=state["progress"]["step"] + 1)


def _check_same(before: Mapping[Key, Any], config: Config, folder: RunFolder) -> None:
    """Raise unless a run that has come so far with one configuration can go on with another."""
    now, steps = flat(config), ("rl", "n_steps")
    other = [key for key in now if before.get(key) != now[key] and key not in FREE_TO_CHANGE]
    if now[steps] < before[steps]:
        other.append(steps)
    if other:
        told = "; ".join(f"`{'.'.join(key)}` is {now[key]!r}, was {before.get(key)!r}" for key in other)
        raise RunError(f"The run {folder.path} has another configuration: {told}. Start a new run for that.")


def _make(config: Config, checkpoint: Path | None = None) -> tuple[ResumableVecEnv, BaseAlgorithm]:
    """Environments and algorithm, the latter from a checkpoint if there is one."""
    if config.rl.device.startswith("cuda") and not torch.cuda.is_available():
        raise RunError(
            f"`rl.device` must be a device of this machine, which has no CUDA. Received {config.rl.device!r}."
        )
    with _impossible(config):
        envs = make_envs(config, config.num_envs, overlap=config.reward.overlap)
        envs = ResumableVecEnv(envs, success_share=config.task.success_share)
    try:
        return envs, _make_algorithm(config, envs, checkpoint)
    except BaseException:
        envs.close()
        raise


def _make_algorithm(config: Config, envs: ResumableVecEnv, checkpoint: Path | None) -> BaseAlgorithm:
    rl = config.rl
    assert rl.algorithm is not None
    kind = algorithm_class(rl.algorithm)
    with _impossible(config):
        options = algorithm_options(config, envs)
        if checkpoint is None:
            return kind(rl.policy_name, envs, seed=config.seed, **options)  # pyright: ignore[reportCallIssue]
    rewards = {key: value for key, value in options.items() if key == "rollout_buffer_kwargs"}
    model = kind.load(checkpoint / "model.zip", env=envs, device=rl.device, **rewards)
    if not ALGORITHMS[rl.algorithm].on_policy:
        model.load_replay_buffer(checkpoint / "replay_buffer.pkl")  # pyright: ignore[reportAttributeAccessIssue]
    return model


@contextmanager
def _impossible(config: Config) -> Iterator[None]:
    """What is wrong with a configuration, and only found out by trying."""
    try:
        yield
    except (ValueError, TypeError, AssertionError, FileNotFoundError, RuntimeError) as error:
        told = f" and policy_kwargs {config.rl.policy_kwargs}" if config.rl.policy_kwargs else ""
        raise RunError(f"{config.task.id} with {config.rl.algorithm}{told} cannot be made: {error}") from error


def _learn(
    config: Config,
    folder: RunFolder,
    envs: ResumableVecEnv,
    model: BaseAlgorithm,
    state: dict[str, Any] | None = None,
    purge_step: int | None = None,
) -> None:
    """Train to the end, from the state of a checkpoint; events from `purge_step` on are of another life."""
    assert config.rl.n_steps is not None
    left = config.rl.n_steps - model.num_timesteps
    _note_versions(folder, config, step=model.num_timesteps)
    interrupts = Interrupts()
    callback = RunCallback(config, folder, envs, interrupts, state)
    with _logger(folder, purge_step) as logger:
        model.set_logger(logger)
        try:
            with interrupts.noted():
                if left > 0:
                    model.learn(left, callback, log_interval=None, reset_num_timesteps=state is None)  # pyright: ignore[reportArgumentType]
        finally:
            callback.close()
    plot_learning_curve(folder.metrics(), folder.path / "learning_curve.png", title=_title(config))


def _title(config: Config) -> str:
    told = "; ".join(config.reward.target_prompts or []) if config.reward.name == "clip" else "its own reward"
    return f"{config.task.id}: {told}"


@contextmanager
def _logger(folder: RunFolder, purge_step: int | None) -> Iterator[Logger]:
    output = _Events(folder.path, purge_step)
    try:
        yield Logger(str(folder.path), [output])
    finally:
        output.close()


@contextmanager
def _tracked(config: Config, folder: RunFolder) -> Iterator[None]:
    """If asked for, Weights and Biases see what TensorBoard is told; a run that goes on is the same one there."""
    if not config.track:
        yield
        return
    import wandb

    try:
        run = wandb.init(
            project="vlmrm_gym",
            name=folder.path.name,
            id=hashlib.blake2b(str(folder.path.resolve()).encode(), digest_size=8).hexdigest(),
            resume="allow",
            dir=folder.path,
            config={".".join(key): value for key, value in flat(config).items()},
            tags=config.tags,
            notes=config.description,
            sync_tensorboard=True,
        )
    except wandb.Error as error:
        raise RunError(
            f"`track` is on, and Weights and Biases cannot begin: {error} "
            "Or set WANDB_MODE=offline to send the run later, or leave `track` out."
        ) from error
    try:
        yield
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish()


class _Events(TensorBoardOutputFormat):
    """Of which those from a step on can be taken back, and which survives a full disk."""

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        self._folder, self._is_closed = str(folder), False
        self.writer = SummaryWriter(self._folder, purge_step=purge_step)

    def write(self, *args: Any, **kwargs: Any) -> None:
        """Write; an OSError if it could not be done. The next time is a fresh start."""
        try:
            super().write(*args, **kwargs)
        except OSError:
            self.writer = SummaryWriter(self._folder)
            raise

    def close(self) -> None:
        """Close, as far as that can be done."""
        with suppress(OSError):
            super().close()


def _note_versions(folder: RunFolder, config: Config, *, step: int) -> None:
    """Add a start to versions.json."""
    path = folder.path / "versions.json"
    starts: list[Any] = []
    with suppress(OSError, ValueError):  # not there yet, or damaged
        starts = json.loads(path.read_text())
    starts.append(
        {
            "step": step,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "vlmrm_gym": vlmrm_gym.__version__,
            "commit": _commit(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "packages": dict(_versions()),
            "model": config.reward.pretrained_model,
        }
    )
    write_whole(path, lambda partial: partial.write_text(json.dumps(starts, indent=2)))


def _versions() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        yield package, importlib.metadata.version(package)


def _commit() -> str | None:
    """Of the source tree that this package runs from, if it does."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
