"""A training, from its configuration to its folder; and one that goes on."""

import importlib.metadata
import json
import os
import pickle
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import Logger, TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter

import vlmrm_gym
from vlmrm_gym.training.algorithms import ALGORITHMS, algorithm_class, algorithm_options
from vlmrm_gym.training.callbacks import Interrupts, RunCallback
from vlmrm_gym.training.config import Config
from vlmrm_gym.training.config_file import Key, flat, read_config_file, to_yaml
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
"""What a run that goes on may have otherwise than before."""

_PACKAGES = ("gymnasium", "mujoco", "numpy", "open_clip_torch", "sb3_contrib", "stable_baselines3", "torch")


def start(config: Config, folder: RunFolder) -> None:
    """Train, into a new folder.

    Args:
        config: `suited`.
        folder: Of the run; it has just been made.

    Raises:
        Interrupted: By Ctrl-C or SIGTERM, after a checkpoint.
        Exception: What loading the model, scoring or training raises.
    """
    try:
        envs = _make_training_envs(config)
    except BaseException:
        folder.path.rmdir()  # nothing has begun
        raise
    try:
        folder.config_file.write_text(to_yaml(config), encoding="utf-8")
        _learn(config, folder, envs)
    finally:
        envs.close()


def resume(config: Config, folder: RunFolder) -> None:
    """Go on with a run from its newest checkpoint; from the beginning if there is none.

    Args:
        config: `suited`; may differ from the run's in what is `FREE_TO_CHANGE`.
        folder: Of the run.

    Raises:
        RunError: The configuration is another one, or the checkpoint is damaged.
        Interrupted, Exception: As `start`.
    """
    before, now = flat(read_config_file(folder.config_file).config), flat(config)
    other = [key for key in now if before.get(key) != now[key] and key not in FREE_TO_CHANGE]
    if other:
        told = "; ".join(f"`{'.'.join(key)}` is {now[key]!r}, was {before.get(key)!r}" for key in other)
        raise RunError(f"The run {folder.path} has another configuration: {told}. Start a new run for that.")
    checkpoint = folder.newest_checkpoint()
    state = None if checkpoint is None else pickle.loads((checkpoint / "state.pkl").read_bytes())
    envs = _make_training_envs(config)
    try:
        write_whole(folder.config_file, lambda path: path.write_text(to_yaml(config), encoding="utf-8"))
        folder.drop_after(state["progress"]["step"] if state else 0)
        _learn(config, folder, envs, checkpoint, state)
    finally:
        envs.close()


def _make_training_envs(config: Config) -> ResumableVecEnv:
    if config.reward.cache_dir is not None:
        os.environ.setdefault("HF_HUB_CACHE", config.reward.cache_dir)
    envs = make_envs(config, config.num_envs, overlap=config.reward.overlap)
    return ResumableVecEnv(envs, success_share=config.task.success_share)


def _learn(
    config: Config,
    folder: RunFolder,
    envs: ResumableVecEnv,
    checkpoint: Path | None = None,
    state: dict[str, Any] | None = None,
) -> None:
    """Train to the end, from a checkpoint if there is one."""
    rl = config.rl
    assert rl.algorithm is not None
    assert rl.n_steps is not None
    options, kind = algorithm_options(config, envs), algorithm_class(rl.algorithm)
    if checkpoint is None:
        model = kind(rl.policy_name, envs, seed=config.seed, **options)  # pyright: ignore[reportCallIssue]
    else:
        source = (
            {"rollout_buffer_kwargs": options["rollout_buffer_kwargs"]} if "rollout_buffer_kwargs" in options else {}
        )
        model = kind.load(checkpoint / "model.zip", env=envs, device=rl.device, **source)
        if not ALGORITHMS[rl.algorithm].on_policy:
            model.load_replay_buffer(checkpoint / "replay_buffer.pkl")  # pyright: ignore[reportAttributeAccessIssue]
        assert state is not None
        restore_environments(model, envs, state["training"])
    _note_versions(folder, config, step=model.num_timesteps)
    interrupts = Interrupts()
    callback = RunCallback(config, folder, envs, interrupts, state)
    with _logger(config, folder, purge_step=model.num_timesteps if checkpoint else None) as logger:
        model.set_logger(logger)
        try:
            with interrupts.noted():
                left = rl.n_steps - model.num_timesteps
                if left > 0:
                    model.learn(left, callback, log_interval=None, reset_num_timesteps=checkpoint is None)  # pyright: ignore[reportArgumentType]
        finally:
            callback.close()
    plot_learning_curve(folder.metrics(), folder.path / "learning_curve.png", title=_title(config))


def _title(config: Config) -> str:
    told = "; ".join(config.reward.target_prompts or []) if config.reward.name == "clip" else "its own reward"
    return f"{config.task.id}: {told}"


@contextmanager
def _logger(config: Config, folder: RunFolder, *, purge_step: int | None) -> Iterator[Logger]:
    """TensorBoard's, and that of Weights and Biases if asked for; what was logged after `purge_step` is forgotten."""
    tracked = None
    if config.track:
        import wandb  # pyright: ignore[reportMissingImports]

        tracked = wandb.init(
            project="vlmrm_gym",
            id=folder.path.name,
            resume="allow",
            dir=folder.path,
            config={".".join(key): value for key, value in flat(config).items()},
            tags=config.tags,
            notes=config.description,
            sync_tensorboard=True,
        )
    output = _Events(folder.path, purge_step)
    try:
        yield Logger(str(folder.path), [output])
    finally:
        output.close()
        if tracked is not None:
            tracked.finish()


class _Events(TensorBoardOutputFormat):
    """Of which those after a step can be taken back."""

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        self.writer = SummaryWriter(str(folder), purge_step=purge_step)
        self._is_closed = False


def _note_versions(folder: RunFolder, config: Config, *, step: int) -> None:
    """Add a start to versions.json."""
    path = folder.path / "versions.json"
    starts = json.loads(path.read_text()) if path.exists() else []
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
