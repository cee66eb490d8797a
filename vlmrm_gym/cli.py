"""The command line: `vlmrm-gym train`, `vlmrm-gym evaluate` and `vlmrm-gym tasks`."""

import errno
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

try:
    import tyro
    from rich.console import Console
    from rich.table import Table

    from vlmrm_gym.training.checks import conflicts
    from vlmrm_gym.training.config import Config, suited
    from vlmrm_gym.training.config_file import (
        ConfigError,
        ConfigFile,
        as_values,
        describe,
        flat,
        read_config_file,
        right_part,
    )
    from vlmrm_gym.training.run_folder import RunError, RunFolder, write_whole
except ImportError as error:
    sys.exit(f'The command line needs more than the package alone: pip install "vlmrm-gym[train]" ({error}).')

from vlmrm_gym.tasks import TASKS


@dataclass
class Train:
    """Train an agent with Stable-Baselines3 on what a sentence says.

    From a configuration file, flags, or both; flags have the last word. Whatever is left open suits the task:

        vlmrm-gym train --env-name VLMRM/CartPole-v1
        vlmrm-gym train config.yaml --seed 3 --reward.num-workers 2
        vlmrm-gym train --resume runs/CartPole-v1__DQN__0__1700000000

    Ctrl-C writes a checkpoint and ends the training. --resume goes on from a run's newest checkpoint, after Ctrl-C, a
    crash or a reboot, as if nothing had happened.
    """

    config: Annotated[Path | None, tyro.conf.Positional] = None
    """a configuration file (YAML), of this package or of the published VLM-RM code"""
    resume: Path | None = None
    """the folder of a run to go on with"""
    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


@dataclass
class Evaluate:
    """Play episodes with a trained policy: success, returns, and a video of the first.

        vlmrm-gym evaluate runs/CartPole-v1__DQN__0__1700000000 --episodes 20

    Writes evaluation.json and evaluation.mp4 into the run's folder.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """the run's folder"""
    episodes: int = 100
    """how many"""
    policy: str = "best"
    """best (by scored return; the last, if too few episodes were scored), last, or the step of a checkpoint"""
    seed: int = 10_000
    """of the first episode; the others' count on"""
    video: bool = True
    """whether to film the first episode"""


@dataclass
class Tasks:
    """List the registered IDs, with their prompts; with --pictures, draw what the model sees.

    vlmrm-gym tasks --pictures pictures
    """

    pictures: Path | None = None
    """a folder, for a picture of every task: an initial state, and one in which the task is done"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command.

    Exits with 2 for what was asked wrongly, with 1 for what failed, with 130 when interrupted, 143 by SIGTERM.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    commands: Any = Annotated[Train, tyro.conf.subcommand("train")]
    commands |= Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    commands |= Annotated[Tasks, tyro.conf.subcommand("tasks")]
    command = tyro.cli(commands, args=arguments, prog="vlmrm-gym", description=__doc__)
    try:
        if isinstance(command, Train):
            _train(command, arguments[1:])
        elif isinstance(command, Evaluate):
            _evaluate(command)
        else:
            _list_tasks(command)
    except (ConfigError, RunError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        print(f"What was to be written could not be: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)


_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""It is full, or must not be written to."""


def _train(command: Train, arguments: list[str]) -> None:
    resumed = None if command.resume is None else RunFolder.open(command.resume)
    config = _configure(command.config or (resumed.config_file if resumed else None), arguments)
    from vlmrm_gym.training.callbacks import Interrupted
    from vlmrm_gym.training.run import resume, start

    folder = resumed or RunFolder.create(config.run_folder)
    try:
        with folder.in_use():
            if resumed:
                resume(config, resumed)
            else:
                start(config, folder)
    except (Interrupted, KeyboardInterrupt) as error:
        print(_how_to_go_on(folder), file=sys.stderr)
        sys.exit(128 + error.signal if isinstance(error, Interrupted) else 130)
    except RunError:
        raise
    except Exception:
        print(_how_to_go_on(folder), file=sys.stderr)
        raise
    print(f"Done: {folder.path}. Judge it by: vlmrm-gym evaluate {folder.path}")


def _configure(source: Path | None, arguments: list[str]) -> Config:
    """The configuration of a file and flags.

    Raises:
        ConfigError: All that is wrong with it.
    """
    file = ConfigFile(Config(), {}, ()) if source is None else read_config_file(source)
    told = tyro.cli(Train, args=arguments, default=Train(settings=file.config), prog="vlmrm-gym train").settings
    right, wrong = right_part(as_values(told))
    in_file, now = flat(file.config), flat(told)
    problems = [*(problem for problem in file.problems if in_file.get(problem.key) == now.get(problem.key)), *wrong]
    problems += conflicts(right, {problem.key for problem in problems})
    if problems:
        where = "the flags" if source is None else f"{source}{' and the flags' if in_file != now else ''}"
        raise ConfigError(where, describe(problems, file, told))
    _use_cache(right)
    return suited(right)


def _use_cache(config: Config) -> None:
    """Have Hugging Face keep weights where the configuration says. It looks there once, when it is imported."""
    if config.reward.cache_dir is not None:
        os.environ["HF_HUB_CACHE"] = str(Path(config.reward.cache_dir).expanduser())


def _how_to_go_on(folder: RunFolder) -> str:
    if not folder.config_file.exists():
        return "Stopped before the training began."
    reached = max(folder.checkpoints, default=0)
    return f"Stopped. Go on from step {reached:,} by: vlmrm-gym train --resume {folder.path}"


def _evaluate(command: Evaluate) -> None:
    folder = RunFolder.open(command.run)
    for name, value, least in (("episodes", command.episodes, 1), ("seed", command.seed, 0)):
        if value < least:
            raise RunError(f"`{name}` must be at least {least}. Received {value}.")
    config = _configure(folder.config_file, ["--no-track"])
    policy = folder.policy(command.policy)
    from vlmrm_gym.training.algorithms import algorithm_class
    from vlmrm_gym.training.evaluation import evaluate, film

    assert config.rl.algorithm is not None
    try:
        model = algorithm_class(config.rl.algorithm).load(policy, device=config.rl.device)
    except Exception as error:
        raise RunError(f"The policy {policy} is no {config.rl.algorithm} of this run, or damaged: {error}") from error
    result = evaluate(config, model, command.episodes, seed=command.seed)
    returns = {"task_return": result.task_returns}
    if config.reward.name == "clip":
        returns = {"scored_return": result.scored_returns, **returns}
    told: dict[str, Any] = {"policy": str(policy.relative_to(folder.path)), "episodes": command.episodes}
    if config.judged:
        told |= {"success": float(result.successes.mean()), "success_share": float(result.success_shares.mean())}
    for name, values in returns.items():
        told |= {name: float(values.mean()), f"{name}_std": float(values.std())}
    table = Table(title=f"{config.task.id}, {told['policy']}, {command.episodes} episodes", show_header=False)
    if config.judged:
        table.add_row("success", f"{told['success']:.0%} of the episodes")
        table.add_row("", f"{told['success_share']:.0%} of the steps")
    for name, values in returns.items():
        table.add_row(name.replace("_", " "), f"{values.mean():.2f} ± {values.std():.2f}")
    _console().print(table)
    write_whole(folder.path / "evaluation.json", lambda path: path.write_text(json.dumps(told, indent=2)))
    if command.video:
        film(config, model, folder.path / "evaluation.mp4", seed=command.seed)
        print(f"Video: {folder.path / 'evaluation.mp4'}")


def _list_tasks(command: Tasks) -> None:
    table = Table()
    table.add_column("ID", no_wrap=True)
    table.add_column("prompt", min_width=8)
    table.add_column("baseline", min_width=8)
    table.add_column("steps", no_wrap=True)
    if command.pictures:
        table.add_column("picture", overflow="fold")
    for task in TASKS:
        row = [task.id, task.prompt or "(yours)", task.baseline, str(task.episode_length)]
        if command.pictures:
            from PIL import Image

            from vlmrm_gym.pictures import draw_task

            command.pictures.mkdir(parents=True, exist_ok=True)
            picture = command.pictures / f"{task.id.removeprefix('VLMRM/')}.png"
            Image.fromarray(draw_task(task)).save(picture)
            row.append(str(picture))
        table.add_row(*row)
    _console().print(table)


def _console() -> Console:
    """As wide as the terminal; where there is none, as wide as need be."""
    return Console() if sys.stdout.isatty() else Console(width=10_000)


if __name__ == "__main__":
    main()
