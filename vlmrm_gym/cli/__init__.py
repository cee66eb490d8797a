"""The command line: `vlmrm-gym check`, `train`, `evaluate`, `score`, `dataset` and `tasks`."""

import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

try:
    import tyro
    from rich.table import Table

    from vlmrm_gym.cli.check import Check, check
    from vlmrm_gym.cli.dataset import Dataset, record_dataset
    from vlmrm_gym.cli.score import Score, score
    from vlmrm_gym.cli.tasks import Tasks, console, list_tasks
    from vlmrm_gym.errors import InputError
    from vlmrm_gym.training.checks import find_named_code, validate
    from vlmrm_gym.training.config import ALIASES, SHORT_FLAGS, Config
    from vlmrm_gym.training.config_file import (
        ConfigError,
        ConfigFile,
        Key,
        Problem,
        as_values,
        describe,
        drop_invalid,
        flatten,
        read_config_file,
    )
    from vlmrm_gym.training.defaults import with_defaults
    from vlmrm_gym.training.files import atomic_write
    from vlmrm_gym.training.run_folder import RunError, RunFolder
    from vlmrm_gym.training.signals import Interrupted, Terminated, sigterm_raises
except ImportError as error:
    sys.exit(f'The command line needs more than the package alone: pip install "vlmrm-gym[train]" ({error}).')

from vlmrm_gym.terminal import say
from vlmrm_gym.validation import short_repr


@dataclass
class Train:
    """Train an agent with Stable-Baselines3 from a prompt.

    Settings come from a configuration file, flags, or both; flags take precedence. All have defaults for the task:

        vlmrm-gym train --env-name VLMRM/CartPole-v1
        vlmrm-gym train --env-name Ant-v5 --prompt "an ant robot on its back" --model ViT-B-32/laion2b_s34b_b79k
        vlmrm-gym train config.yaml --seed 3 --reward.num-workers 2
        vlmrm-gym train --resume runs/CartPole-v1__DQN__0__1700000000

    --prompt, --baseline, --alpha and --model are short for --reward.prompt and so on.

    Ctrl-C writes a checkpoint and ends the training. After Ctrl-C, a crash or a reboot, --resume continues exactly from
    the newest checkpoint (in environments of other packages, with new episodes).

    Do not resume a stranger's run: its checkpoints are read without executing code, but its configuration names models
    to download and folders to write to (SECURITY.md).
    """

    config: Annotated[Path | None, tyro.conf.Positional] = None
    """a configuration file (YAML), of this package or of the published VLM-RM code"""
    resume: Path | None = None
    """the folder of a run to resume"""
    trust_code: bool = False
    """run the code that the configuration file names: a reward, its combine_views or an environment, as module:name, a
    text with a colon in env_kwargs, or a runtime_env of Ray"""
    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


@dataclass
class Evaluate:
    """Evaluate a trained policy: success, returns, and a video of the first episode.

        vlmrm-gym evaluate runs/CartPole-v1__DQN__0__1700000000 --episodes 20

    Writes evaluation.json and evaluation.mp4 into the run's folder. Only the weights of a policy are read, no code; but
    read a stranger's config.yaml first, as it names models to download and folders to write to (SECURITY.md).
    """

    run: Annotated[Path, tyro.conf.Positional]
    """the run's folder"""
    episodes: int = 100
    """number of episodes"""
    policy: str = "best"
    """best (by VLM return; last, if too few episodes were scored), last, or the step of a checkpoint"""
    seed: int = 10_000
    """of the first episode; the others' follow"""
    video: bool = True
    """whether to record a video of the first episode"""
    trust_code: bool = False
    """run the code that the run's configuration names: a reward, its combine_views or an environment, as module:name, a
    text with a colon in env_kwargs, or a runtime_env of Ray"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command.

    Exit codes: 2 for bad input, 1 for a failure, 130 after Ctrl-C, 143 after SIGTERM.
    """
    if arguments is None:
        arguments = sys.argv[1:]
        sys.path.append("")  # modules that settings name may lie in the current folder
    arguments, words = _without_aliases(arguments)
    commands: Any = Annotated[Check, tyro.conf.subcommand("check")]
    commands |= Annotated[Train, tyro.conf.subcommand("train")]
    commands |= Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    commands |= Annotated[Score, tyro.conf.subcommand("score")]
    commands |= Annotated[Dataset, tyro.conf.subcommand("dataset")]
    commands |= Annotated[Tasks, tyro.conf.subcommand("tasks")]
    command = tyro.cli(commands, args=arguments, prog="vlmrm-gym", description=__doc__)
    try:
        with sigterm_raises():
            if isinstance(command, Train):
                _train(command, arguments[1:], words)
            elif isinstance(command, Evaluate):
                _evaluate(command)
            elif isinstance(command, Check):
                check(command)
            elif isinstance(command, Score):
                score(command)
            elif isinstance(command, Dataset):
                record_dataset(command)
            else:
                list_tasks(command)
    except (ConfigError, InputError, RunError) as error:
        say(error, error=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        say(f"What was to be written could not be: {error}", error=True)
        sys.exit(1)
    except Terminated:
        say("Terminated.", error=True)
        sys.exit(143)
    except KeyboardInterrupt:
        say("Interrupted.", error=True)
        sys.exit(130)


_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
"""The disk is full, read-only or fails."""


def _without_aliases(arguments: Sequence[str]) -> tuple[list[str], list[tuple[Key, str]]]:
    """Arguments with flags in place of aliases; and the keys and words of all flags that have an alias."""
    meant = {**ALIASES, **SHORT_FLAGS, **{key: key for key in (*ALIASES.values(), *SHORT_FLAGS.values())}}
    spelled, words = list(arguments), []
    if arguments[:1] != ["train"]:
        return spelled, words
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        word = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and word in meant:
            spelled[i] = f"--{meant[word]}{equals}{value}"
            words.append((tuple(meant[word].split(".")), word))
    return spelled, words


def _train(command: Train, arguments: list[str], words: Sequence[tuple[Key, str]]) -> None:
    resumed = None if command.resume is None else RunFolder.open(command.resume)
    source = command.config or (resumed.config_file if resumed else None)
    config = _configure(source, arguments, words, trust_code=command.trust_code)
    from vlmrm_gym.training.run import resume, start

    folder = resumed or RunFolder.create(config.run_folder)
    try:
        with folder.locked():
            if resumed:
                resume(config, resumed)
            else:
                start(config, folder)
    except (Interrupted, KeyboardInterrupt) as error:
        say(_resume_hint(folder), error=True)
        sys.exit(128 + getattr(error, "signal", signal.SIGINT))
    except RunError:
        raise
    except Exception:
        say(_resume_hint(folder), error=True)
        raise
    say(f"Done: {folder.path}. To evaluate it: vlmrm-gym evaluate {folder.path}")


def _configure(
    source: Path | None, arguments: list[str], words: Sequence[tuple[Key, str]] = (), *, trust_code: bool = False
) -> Config:
    """The configuration of a file and flags.

    Args:
        source: The file.
        arguments: The flags, without aliases.
        words: Keys of the flags that have an alias, and the user's words for them.
        trust_code: Whether to run code that the file names.

    Raises:
        ConfigError: It has errors; the message lists all.
    """
    file = ConfigFile(Config(), {}, ()) if source is None else read_config_file(source)
    settings = _read_flags(arguments, file.config)
    valid, wrong = drop_invalid(as_values(settings))
    _use_cache(valid)  # before anything imports Hugging Face's libraries, as checking a model's name does
    in_file, now = flatten(file.config), flatten(settings)
    problems = [*(problem for problem in file.problems if in_file.get(problem.key) == now.get(problem.key)), *wrong]
    problems += [_twice(key, dict(words)[key], word) for key, word in words if word != dict(words)[key]]
    if not trust_code:
        problems += find_named_code(valid, _read_flags(arguments, Config()))
    problems += validate(valid, {problem.key for problem in problems})
    if problems:
        where = "the flags" if source is None else f"{source}{' and the flags' if in_file != now else ''}"
        raise ConfigError(where, describe(problems, file, settings, dict(words)))
    return with_defaults(valid)


def _read_flags(arguments: list[str], default: Config) -> Config:
    return tyro.cli(Train, args=arguments, default=Train(settings=default), prog="vlmrm-gym train").settings


def _twice(key: Key, word: str, other: str) -> Problem:
    return Problem(key, f"`{other}` and `{word}` are the same. Leave one.")


def _use_cache(config: Config) -> None:
    """Set Hugging Face's cache, which is read once, when its libraries are imported."""
    if config.reward.cache_dir is not None:
        os.environ["HF_HUB_CACHE"] = str(Path(config.reward.cache_dir).expanduser())


def _resume_hint(folder: RunFolder) -> str:
    if not folder.config_file.exists():
        return "Stopped before the training began."
    reached = max(folder.checkpoints, default=0)
    return f"Stopped. To resume from step {reached:,}: vlmrm-gym train --resume {folder.path}"


def _evaluate(command: Evaluate) -> None:
    folder = RunFolder.open(command.run)
    for name, value, least, most in (
        ("episodes", command.episodes, 1, 1_000_000),
        ("seed", command.seed, 0, 2**32 - 1),
    ):
        if not least <= value <= most:
            raise RunError(f"`{name}` must be from {least} to {most}. Received {short_repr(value)}.")
    config = _configure(folder.config_file, ["--no-track"], trust_code=command.trust_code)
    policy = folder.policy(command.policy)
    from vlmrm_gym.training.evaluation import evaluate, load_policy, record_video

    model = load_policy(config, policy)
    result = evaluate(config, model, command.episodes, seed=command.seed)
    summary: dict[str, Any] = {"policy": str(policy.relative_to(folder.path)), "episodes": command.episodes}
    summary |= result.means(config.success_threshold)
    if config.task and not config.has_success:  # its `info["success"]` is always False
        del summary["success"], summary["success_fraction"]
    returns = {"vlm_return": result.vlm_returns, "task_return": result.task_returns}
    if config.reward.name == "ground_truth":  # both are the same
        del returns["vlm_return"], summary["vlm_return"]
    summary |= {f"{name}_std": float(values.std()) for name, values in returns.items()}
    table = Table(title=f"{config.id}, {summary['policy']}, {command.episodes} episodes", show_header=False)
    if "success" in summary:
        table.add_row("success", f"{summary['success']:.0%} of the episodes")
        table.add_row("", f"{summary['success_fraction']:.0%} of the steps")
    for name in returns:
        table.add_row(
            name.replace("vlm", "VLM").replace("_", " "), f"{summary[name]:.2f} ± {summary[f'{name}_std']:.2f}"
        )
    console().print(table)
    atomic_write(folder.path / "evaluation.json", lambda path: path.write_text(json.dumps(summary, indent=2)))
    if command.video:
        record_video(config, model, folder.path / "evaluation.mp4", seed=command.seed, progress=True)
        say(f"Video: {folder.path / 'evaluation.mp4'}")
