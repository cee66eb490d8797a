"""What the single files in `examples/` share: common flags, and the start, checkpoint and result of a run."""

import json
import pickle
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

import vlmrm_gym
from vlmrm_gym.registration import find_spec, find_task
from vlmrm_gym.training.resume_checks import find_changes
from vlmrm_gym.validation import short_repr


@dataclass
class RunArgs:
    """Flags of every single file, after CleanRL's."""

    exp_name: str
    """the name of this experiment"""
    env_id: str
    """the id of the environment"""
    seed: int = 1
    """seed of the experiment"""
    torch_deterministic: bool = True
    """if toggled, `torch.backends.cudnn.deterministic=True`"""
    torch_threads: int | None = None
    """CPU threads of torch; None: all"""
    track: bool = False
    """if toggled, this experiment will be tracked with Weights and Biases (`pip install "vlmrm-gym[track]"`)"""
    wandb_project_name: str = "vlmrm_gym"
    """the wandb's project name"""
    wandb_entity: str | None = None
    """the entity (team) of wandb's project"""
    capture_video: bool = True
    """whether to write a video of the trained agent"""
    runs_folder: Path = Path("runs")
    """parent folder of the run's folder"""
    model: str = "tiny"
    """the vision-language model: any open_clip model, see `vlmrm_gym.CLIPReward`"""
    num_workers: int = 0
    """worker processes that render and score; 0: the main process"""
    eval_episodes: int = 100
    """episodes of the final evaluation"""


Args = TypeVar("Args", bound=RunArgs)

RESUME_OVERRIDABLE = (
    "total_timesteps",
    "checkpoint_frequency",
    "eval_episodes",
    "capture_video",
    "device",
    "num_workers",
    "torch_threads",
    "track",
    "wandb_project_name",
    "wandb_entity",
)
"""Settings that may change when a run is resumed; `total_timesteps` may only grow."""


def check_learning_starts(
    learning_starts: int, num_envs: int, env_id: str, episode_length: int | None, *, overlap: bool
) -> None:
    """Check that there are rewards to learn from when learning starts.

    Args:
        learning_starts: The step at which learning starts.
        num_envs: Number of environments.
        env_id: Their ID.
        episode_length: Steps after which an episode is truncated; None: the ID's own time limit.
        overlap: Whether environments step on while an episode is scored. Its rewards arrive at the latest when the next
            episode ends.

    Raises:
        ValueError: Learning would start too early, or there is no time limit.
        gymnasium.error.Error: The ID is unknown.
    """
    if episode_length is None:
        task = find_task(env_id)
        episode_length = task.episode_length if task else find_spec(env_id).max_episode_steps
    if episode_length is None:
        raise ValueError(f"`episode_length` must be given for {env_id}, which has no time limit. Received None.")
    least = (2 if overlap else 1) * num_envs * episode_length
    if learning_starts < least:
        raise ValueError(
            f"`learning_starts` must be at least {least}, {'two episodes' if overlap else 'one episode'} of every "
            f"environment. Received {learning_starts}. Raise it, or lower `num_envs` or `episode_length`."
        )


def start_run(args: RunArgs, run_folder: Path | None = None) -> tuple[Path, SummaryWriter]:
    """Open the logs of a run, and seed Python, NumPy and PyTorch.

    Args:
        args: Settings of the run; they are logged.
        run_folder: Folder of the run to resume; None: a new one in `args.runs_folder`.

    Returns:
        The folder, and the writer of its TensorBoard events. With `track` they are sent to Weights and Biases, too.
    """
    run_name = f"{args.env_id.replace('/', '_').replace(':', '_')}__{args.exp_name}__{args.seed}__{int(time.time())}"
    run_folder = run_folder or args.runs_folder / run_name
    if args.track:
        import wandb

        wandb.init(
            project=args.wandb_project_name,
            entity=args.wandb_entity,
            sync_tensorboard=True,
            config=vars(args),
            name=run_name,
            save_code=True,
        )
    writer = SummaryWriter(str(run_folder))
    hyperparameters = "\n".join(f"|{key}|{value}|" for key, value in vars(args).items())
    writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{hyperparameters}")
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    if args.torch_threads is not None:
        torch.set_num_threads(args.torch_threads)
    return run_folder, writer


def load_args(args_class: type[Args], run_folder: Path, format: int) -> Args:
    """Settings of a run to resume, without reading the tensors of its checkpoint; see `load_checkpoint`."""
    return load_checkpoint(args_class, run_folder, format)[0]


def load_checkpoint(args_class: type[Args], run_folder: Path, format: int) -> tuple[Args, dict[str, Any]]:
    """Settings and state of a run to resume, from its `checkpoint.pt`. Loads numbers, strings and tensors only.

    Tensors stay in the file until they are used. Copy them, so that the file does not have to be kept: the next
    checkpoint replaces it.

    Args:
        args_class: Class of the settings. They need a field `resume`.
        run_folder: Folder of the run.
        format: The checkpoint's `state["format"]`. Raised when a program's checkpoints change.

    Raises:
        ValueError: There is no checkpoint, or it is damaged or of another version of the program.
    """
    if not (run_folder / "checkpoint.pt").exists():
        raise ValueError(
            f"`resume` must be the folder of a run that has reached a checkpoint. Received {run_folder}, which has no "
            "checkpoint.pt."
        )
    try:
        state = torch.load(run_folder / "checkpoint.pt", map_location="cpu", weights_only=True, mmap=True)
        if state["format"] != format:
            raise KeyError("format")
        return args_class(**{**state["args"], "runs_folder": run_folder.parent, "resume": run_folder}), state
    except (EOFError, pickle.UnpicklingError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"`resume` must be a run of this version. Received {run_folder}, whose checkpoint.pt is damaged or of "
            "another version. Start a new run."
        ) from error


def check_named_code(saved: RunArgs, given: RunArgs) -> None:
    """Check that the settings of a checkpoint name no code to run, except what flags name as well.

    Args:
        saved: The settings of the checkpoint. They may have fields `reward` and `combine_views`.
        given: What the flags say.

    Raises:
        ValueError: One names code.
    """
    for name in ("env_id", "reward", "combine_views"):
        value = getattr(saved, name, None)
        own = "vlmrm_gym:" if name == "env_id" else ""  # importing this package registers IDs
        is_code = ":" in value.removeprefix(own) if isinstance(value, str) else value is not None
        if is_code and value != getattr(given, name):
            raise ValueError(
                f"`{name}` of the checkpoint names code that would be run. Received {short_repr(value)}. If you trust "
                f"it, pass the same as --{name.replace('_', '-')}."
            )


def check_same_run(args: Args, saved: Args) -> None:
    """Check that a run can be resumed with these settings.

    Args:
        args: The settings.
        saved: Those of its checkpoint. They need a field `total_timesteps`.

    Raises:
        ValueError: One differs that is not in `RESUME_OVERRIDABLE`, or there are fewer steps than before.
    """
    changes = find_changes(plain_args(saved), plain_args(args), RESUME_OVERRIDABLE, "total_timesteps")
    if changes:
        raise ValueError(f"The run to resume has other settings: {changes}. Start a new run for that.")


def plain_args(args: RunArgs) -> dict[str, Any]:
    """Settings of a run as numbers, strings, booleans and None."""
    return {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}


def write_result(run_folder: Path, args: RunArgs, started: float, measured: dict[str, float]) -> None:
    """Write `result.json`: what was measured, the minutes since `started` (`time.monotonic()`), version and settings.

    Raises:
        OSError: It could not be written.
    """
    minutes = (time.monotonic() - started) / 60
    result = {**measured, "minutes": minutes, "version": vlmrm_gym.__version__, "args": plain_args(args)}
    (run_folder / "result.json").write_text(json.dumps(result, indent=2))
