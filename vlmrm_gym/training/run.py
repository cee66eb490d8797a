"""Starting and resuming runs."""

import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger, TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter

from vlmrm_gym.files import atomic_write, check_space
from vlmrm_gym.training.algorithms import ALGORITHMS, algorithm_class, algorithm_options
from vlmrm_gym.training.callbacks import Progress, RunCallback
from vlmrm_gym.training.config import Config
from vlmrm_gym.training.config_file import Key, flatten, to_yaml, without_alias
from vlmrm_gym.training.data_files import load_replay_buffer, load_state, load_weights, reading
from vlmrm_gym.training.environments import make_envs
from vlmrm_gym.training.plots import plot_learning_curve
from vlmrm_gym.training.resumable import ResumableVecEnv, check_training_state, restore_environments
from vlmrm_gym.training.resume_checks import find_changes
from vlmrm_gym.training.run_folder import RunError, RunFolder
from vlmrm_gym.training.signals import SignalGuard
from vlmrm_gym.training.versions import read_versions
from vlmrm_gym.validation import short_repr, truncate

RESUME_OVERRIDABLE = (
    "base_path",
    "run_name",
    "description",
    "tags",
    "track",
    "reward.backend",
    "reward.cache_dir",
    "reward.device",
    "reward.devices",
    "reward.max_pending_bytes",
    "reward.ray_options",
    "reward.worker_timeouts",
    "rl.n_steps",
    "rl.device",
    "logging.checkpoint_freq",
    "logging.video_freq",
    "logging.tensorboard_freq",
)
"""Keys that may change when a run is resumed; `rl.n_steps` may only grow."""


def start(config: Config, folder: RunFolder) -> None:
    """Train in a new folder.

    Args:
        config: A configuration with defaults filled in.
        folder: The run's new folder.

    Raises:
        RunError: The environments, their reward or the tracking cannot be made; the folder is removed.
        Interrupted: Ctrl-C or SIGTERM, after a checkpoint was written.
        Exception: Raised by scoring or training.
    """
    with ExitStack() as running:
        try:
            atomic_write(folder.config_file, lambda path: path.write_text(to_yaml(config), encoding="utf-8"))
            envs, model = _make(config)
            running.callback(envs.close)
            running.enter_context(_tracked(config, folder))
        except BaseException:
            shutil.rmtree(folder.path)  # nothing has been trained
            raise
        _learn(config, folder, envs, model)


def resume(config: Config, folder: RunFolder) -> None:
    """Resume a run from its newest checkpoint; from the beginning if there is none.

    Args:
        config: A configuration with defaults filled in; only keys in `RESUME_OVERRIDABLE` may change.
        folder: The run's folder.

    Raises:
        RunError: The configuration differs, or the checkpoint is damaged.
        Interrupted, Exception: As `start`.
    """
    checkpoint = folder.newest_checkpoint()
    state, purge_step, not_of_this_run = None, 0, f"The state of {checkpoint} is not of this run"
    if checkpoint is not None:
        state = load_state(checkpoint / "state.pt")
        with reading(not_of_this_run):
            progress = Progress.read(state["progress"], int(checkpoint.name))
            state["progress"], purge_step = asdict(progress), progress.step + 1
            _check_same(state["config"], config, folder)
    envs, model = _make(config, checkpoint)
    with closing(envs):
        if state is not None:
            with reading(not_of_this_run):
                assert config.rl.episode_length is not None
                check_training_state(model, envs, state["training"], config.rl.episode_length)
                if (step := state["training"]["counters"]["num_timesteps"]) != purge_step - 1:
                    raise ValueError(f"it has {step} steps, and its progress {purge_step - 1}.")
            with reading(not_of_this_run, (AttributeError, LookupError, TypeError, ValueError)):
                restore_environments(model, envs, state["training"])
        with _tracked(config, folder):
            atomic_write(folder.config_file, lambda path: path.write_text(to_yaml(config), encoding="utf-8"))
            folder.rewind(checkpoint)
            _learn(config, folder, envs, model, state, purge_step=purge_step)


def _check_same(before: Mapping[Key, Any], config: Config, folder: RunFolder) -> None:
    """Raise a `RunError` unless a run with one configuration can be resumed with another."""
    saved = flatten(Config()) | {without_alias(key): value for key, value in before.items()}
    changes = find_changes(_dotted(saved), _dotted(flatten(config)), RESUME_OVERRIDABLE, "rl.n_steps")
    if changes:
        raise RunError(f"The run {folder.path} has another configuration: {changes}. Start a new run for that.")


def _dotted(values: Mapping[Key, Any]) -> dict[str, Any]:
    return {".".join(key): value for key, value in values.items()}


def _make(config: Config, checkpoint: Path | None = None) -> tuple[ResumableVecEnv, BaseAlgorithm]:
    """Make the environments, and make the algorithm or load it from a checkpoint."""
    if config.rl.device.startswith("cuda") and not torch.cuda.is_available():
        raise RunError(
            f"`rl.device` must be a device of this machine, which has no CUDA. Received {config.rl.device!r}."
        )
    with _as_run_error(config):
        envs = make_envs(
            config,
            config.num_envs,
            overlap=config.reward.overlap,
            sparse=True,
            start_near_goal=config.rl.start_near_goal,
        )
        envs = ResumableVecEnv(
            envs, success_threshold=config.success_threshold, lockstep=config.task is not None and config.task.lockstep
        )
    try:
        return envs, _make_algorithm(config, envs, checkpoint)
    except BaseException:
        envs.close()
        raise


def _make_algorithm(config: Config, envs: ResumableVecEnv, checkpoint: Path | None) -> BaseAlgorithm:
    rl = config.rl
    assert rl.algorithm is not None
    assert rl.policy_name is not None
    kind = algorithm_class(rl.algorithm)
    with _as_run_error(config):
        model = kind(rl.policy_name, envs, seed=config.seed, **algorithm_options(config, envs))  # pyright: ignore[reportCallIssue]
    if checkpoint is not None:
        load_weights(model, checkpoint / "model.zip")
        if not ALGORITHMS[rl.algorithm].on_policy:
            load_replay_buffer(model, checkpoint / "replay_buffer.npz")
    return model


@contextmanager
def _as_run_error(config: Config) -> Iterator[None]:
    """Turn errors from constructing environments and algorithm into a `RunError`; not all can be checked earlier."""
    try:
        yield
    except (
        gym.error.Error,
        ValueError,
        TypeError,
        AssertionError,
        FileNotFoundError,
        RuntimeError,
        MemoryError,
    ) as error:
        kwargs = f" and policy_kwargs {short_repr(config.rl.policy_kwargs)}" if config.rl.policy_kwargs else ""
        reason = truncate(str(error) or type(error).__name__, 1_000)  # a MemoryError has no text
        raise RunError(f"{config.id} with {config.rl.algorithm}{kwargs} cannot be made: {reason}") from error


def _learn(
    config: Config,
    folder: RunFolder,
    envs: ResumableVecEnv,
    model: BaseAlgorithm,
    state: dict[str, Any] | None = None,
    purge_step: int | None = None,
) -> None:
    """Train to the end, starting from a checkpoint's state if given; purge TensorBoard events from `purge_step` on."""
    assert config.rl.n_steps is not None
    left = config.rl.n_steps - model.num_timesteps
    _log_versions(folder, config, step=model.num_timesteps)
    signals = SignalGuard()
    callback = RunCallback(config, folder, envs, signals, state)
    with _logger(folder, purge_step) as logger:
        model.set_logger(logger)
        try:
            with signals.active():
                if left > 0:
                    model.learn(left, callback, log_interval=None, reset_num_timesteps=state is None)  # pyright: ignore[reportArgumentType]
        finally:
            callback.close()
    rows, title = folder.metrics(), _title(config)
    atomic_write(folder.path / "learning_curve.png", lambda path: plot_learning_curve(rows, path, title=title))


def _title(config: Config) -> str:
    reward = config.reward
    titles = {"clip": "; ".join(reward.prompt or []), "ground_truth": "its own reward"}
    return f"{config.id}: {titles.get(reward.name, reward.name)}"


@contextmanager
def _logger(folder: RunFolder, purge_step: int | None) -> Iterator[Logger]:
    output = _TensorBoardWriter(folder.path, purge_step)
    try:
        yield Logger(str(folder.path), [output])
    finally:
        output.close()


@contextmanager
def _tracked(config: Config, folder: RunFolder) -> Iterator[None]:
    """With `track`, mirror TensorBoard to Weights and Biases; a resumed run keeps its ID there."""
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
            config=_dotted(flatten(config)),
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


_EVENTS_SIZE = 2**16
"""More than the events of one write take, in bytes."""


class _TensorBoardWriter(TensorBoardOutputFormat):
    """A TensorBoard writer that can purge events from a step on, and tolerates a full disk."""

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        self._folder, self._is_closed = folder, False
        self.writer = new_event_file(folder, purge_step)

    def write(self, *args: Any, **kwargs: Any) -> None:
        """Write; on an OSError, start a new event file and raise."""
        check_space(self._folder, _EVENTS_SIZE)
        try:
            super().write(*args, **kwargs)
        except OSError:
            self.writer = new_event_file(self._folder)
            raise

    def close(self) -> None:
        """Close, even if the last events cannot be written."""
        with suppress(OSError):
            super().close()


def new_event_file(folder: Path, purge_step: int | None = None) -> SummaryWriter:
    """Start an event file that TensorBoard reads after those that the folder has.

    TensorBoard reads them in the order of their names, which begin with the second and end with a counter: within a
    second, file 10 would be read before file 9. So two files never begin in the same second.
    """
    parts = (path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*.*"))
    seconds = [int(part) for part in parts if part.isdecimal()]
    time.sleep(min(max(max(seconds, default=0) + 1 - time.time(), 0), 1))
    check_space(folder, _EVENTS_SIZE)
    return SummaryWriter(str(folder), purge_step=purge_step)


def _log_versions(folder: RunFolder, config: Config, *, step: int) -> None:
    """Add this start to versions.json."""
    path = folder.path / "versions.json"
    starts: list[Any] = []
    with suppress(OSError, ValueError, TypeError, RecursionError):  # missing at the first start, or damaged
        starts = list(json.loads(path.read_text()))
    model = config.reward.model if config.reward.name == "clip" else None
    starts.append({"step": step, **read_versions(), "model": model})
    atomic_write(path, lambda partial: partial.write_text(json.dumps(starts, indent=2)))
