"""The command `vlmrm-gym train`: trainings with Stable-Baselines3."""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from vlmrm_gym.terminal import say
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
from vlmrm_gym.training.run_folder import RunError, RunFolder
from vlmrm_gym.training.signals import Interrupted


@dataclass
class Train:
    """Train an agent with Stable-Baselines3 from a prompt.

    Settings come from a configuration file, flags, or both; flags take precedence. All have defaults for the task:

        vlmrm-gym train VLMRM/CartPole-v1
        vlmrm-gym train Ant-v5 --prompt "an ant robot on its back" --model ViT-B-32/laion2b_s34b_b79k
        vlmrm-gym train config.yaml --seed 3 --reward.num-workers 2
        vlmrm-gym train --resume runs/CartPole-v1__DQN__0__1700000000

    --prompt, --baseline, --alpha and --model are short for --reward.prompt and so on.

    Ctrl-C writes a checkpoint and ends the training. After Ctrl-C, a crash or a reboot, --resume continues exactly from
    the newest checkpoint (in environments of other packages, with new episodes).

    Do not resume a stranger's run: its checkpoints are read without executing code, but its configuration names models
    to download and folders to write to (SECURITY.md).
    """

    config: Annotated[Path | None, tyro.conf.Positional] = None
    """a configuration file (YAML), of this package or of the published VLM-RM code; or an ID, short for --env-name"""
    dry_run: bool = False
    """print the plan only: environments, updates, memory, downloads"""
    resume: Path | None = None
    """the folder of a run to resume"""
    trust_code: bool = False
    """run the code that the configuration file names: a reward, its combine_views or an environment, as module:name, a
    text with a colon in env_kwargs, or a runtime_env of Ray"""
    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    spelled, words = without_aliases(id_as_flag(arguments))
    train(tyro.cli(Train, args=spelled, prog="vlmrm-gym train"), spelled, words)


def train(command: Train, arguments: list[str], words: Sequence[tuple[Key, str]]) -> None:
    """Run the command.

    Raises:
        ConfigError: The configuration has errors; the message lists all.
        RunError: The run's folder cannot be used.
    """
    resumed = None if command.resume is None else RunFolder.open(command.resume)
    source = command.config or (resumed.config_file if resumed else None)
    config = configure(source, arguments, words, trust_code=command.trust_code)
    from vlmrm_gym.training.plan import plan_training

    for name, text in plan_training(config).items():
        say(f"{name + ':':14}{text}")
    if command.dry_run:
        return
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


def configure(
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


def id_as_flag(arguments: Sequence[str]) -> list[str]:
    """Arguments in which a first one that is an ID, and no file, is passed by --env-name."""
    first = Path(*arguments[:1])
    if not arguments or arguments[0].startswith("-") or first.suffix in (".yaml", ".yml") or os.path.exists(first):
        return list(arguments)
    return ["--env-name", *arguments]


def without_aliases(arguments: Sequence[str]) -> tuple[list[str], list[tuple[Key, str]]]:
    """Arguments with flags in place of aliases; and the keys and words of all flags that have an alias."""
    meant = {**ALIASES, **SHORT_FLAGS, **{key: key for key in (*ALIASES.values(), *SHORT_FLAGS.values())}}
    spelled, words = list(arguments), []
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        word = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and word in meant:
            spelled[i] = f"--{meant[word]}{equals}{value}"
            words.append((tuple(meant[word].split(".")), word))
    return spelled, words
