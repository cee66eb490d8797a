"""The command `vlmrm-gym train`: trainings with Stable-Baselines3."""

import difflib
import inspect
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro
from rich.table import Table

from vlmrm_gym._util.errors import say
from vlmrm_gym.scoring.options import read_help
from vlmrm_gym.tools.cli.settings import PlainConsole, describe_kinds
from vlmrm_gym.tools.flags import is_said, plain, tyro_rules, word_of
from vlmrm_gym.tools.train.checks import check_key, read_settings
from vlmrm_gym.tools.train.config import Config
from vlmrm_gym.tools.train.config_file import ALIASES, SECTIONS, ConfigError, Key, Problem, flatten, names_of
from vlmrm_gym.tools.train.run_folder import RunError, RunFolder
from vlmrm_gym.tools.train.signals import Interrupted
from vlmrm_gym.tools.yaml_values import read_flag

_SHORT = ("prompt", "goal_images", "baseline", "baseline_images", "alpha", "model", "camera", "labeler")
_SHORT += ("combine_views", "num_workers", "score_every", "task_reward_weight")
FLAGS: Mapping[str, str] = {
    **{name: f"reward.{name}" for name in _SHORT},
    "reward": "reward.name",
    "reward_kwargs": "reward.kwargs",
    "total_timesteps": "rl.n_steps",
    "algorithm": "rl.algorithm",
    "episode_length": "rl.episode_length",
    **{f"reward.{word}": f"reward.{name}" for word, name in ALIASES.items()},
}
"""Short flags, and those of the published format's words, with the keys that they stand for."""
_SHOWN = {
    "the sentence": ("prompt", "model", "goal_images", "baseline", "alpha", "camera"),
    "another reward": ("reward", "reward_kwargs", "task_reward_weight", "labeler"),
    "the training": ("total_timesteps", "algorithm", "num_workers", "episode_length", "env_kwargs", "seed"),
    "the run": ("base_path", "run_name", "track", "resume", "dry_run", "trust_code"),
}
"""Flags of --help, which most trainings need, by what they are about. All others: --help-all."""


@dataclass
class Train:
    """Train an agent with Stable-Baselines3 from a prompt.

    Settings come from a configuration file, flags, or both; flags take precedence. All have defaults for the task:

        vlmrm-gym train VLMRM/CartPole-v1
        vlmrm-gym train Ant-v5 --prompt "an ant robot on its back" --model ViT-B-32/laion2b_s34b_b79k
        vlmrm-gym train config.yaml --seed 3 --num-workers 2
        vlmrm-gym train VLMRM/CartPole-v1 --reward preference --labeler human
        vlmrm-gym train --resume runs/CartPole-v1__DQN__0__1700000000

    Flags are keys of the file: --prompt is short for --reward.prompt, --total-timesteps for --rl.n-steps. Any parameter
    of the algorithm is one, whose value is YAML: --rl.learning-rate 3e-4, --rl.policy-kwargs "{net_arch: [64, 64]}".

    Ctrl-C ends the training with a checkpoint, when the episodes have ended. After Ctrl-C, a crash or a reboot,
    --resume continues from the newest checkpoint as if nothing had happened.

    Do not resume a stranger's run: its configuration names models to download and folders to write to (SECURITY.md).
    """

    config: Annotated[Path | None, tyro.conf.Positional] = None
    """a configuration file (YAML), of this package or of the published VLM-RM code; or an
    environment: the same as --env-name"""
    dry_run: bool = False
    """print the plan only: environments, updates, memory, downloads"""
    resume: Path | None = None
    """the folder of a run to resume"""
    trust_code: bool = False
    """run the code that the configuration file names. It names a reward, its labeler, schedule or combine_views, or an
    environment, as module:name, a text with a colon in env_kwargs, or a runtime_env of Ray; or, as a labeler's
    base_url, a server that gets your key"""
    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    spelled, about = id_as_flag(arguments), inspect.cleandoc(Train.__doc__ or "")
    if {"-h", "--help"} & set(spelled):
        console = PlainConsole()
        for part in _short_help(about):
            console.print(part, width=min(console.width, 110))
        sys.exit()
    short = ", ".join(f"--{flag} ({key})" for flag, key in FLAGS.items() if "." not in flag).replace("_", "-")
    about += f"\n\n{describe_kinds()}\n\nShort flags: {short}."
    spelled = ["--help" if word == "--help-all" else word for word in spelled]
    train(*read_flags(spelled, about))


def _short_help(about: str) -> Iterator[Any]:
    """Yield what is printed: the usage, the description, and a table of flags for each of `_SHOWN`."""
    yield "usage: vlmrm-gym train [ID | CONFIG.yaml] [flags]\n\n" + about
    for title, flags in _SHOWN.items():
        table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, show_header=False)
        table.add_column(no_wrap=True)
        for flag in flags:
            table.add_row(*_describe(flag))
        if title == "the run":
            table.add_row("  --help-all", "every flag: environments, scoring, workers, Ray, preferences, logging")
        yield table


def _describe(flag: str) -> tuple[str, str]:
    """A flag with its kind of value, and its help with the default."""
    section, _, name = FLAGS.get(flag, flag).rpartition(".")
    owner = Train if name in Train.__dataclass_fields__ else SECTIONS.get(section, Config)
    one = owner.__dataclass_fields__[name]
    text, default = re.split(r"\. |\.$", read_help(owner)[name])[0], one.default
    text = text[0].lower() + text[1:] if text[1:2].islower() and not text.startswith("MuJoCo") else text
    if is_said(default):
        text += f" (default: {default})"
    word = word_of(get_type_hints(owner, include_extras=True)[name])
    return f"  --{flag.replace('_', '-')}{word and f' {word}'}", plain(text, default)


def train(command: Train, flags: Mapping[Key, Any]) -> None:
    """Run the command; raises a ConfigError or RunError if a setting or the run's folder cannot be used."""
    resumed = None if command.resume is None else RunFolder.open(command.resume)
    source = command.config or (resumed.config_file if resumed else None)
    config, file = read_settings(source, flags, flags, trust_code=command.trust_code)
    if resumed is None:
        with file.locating():
            check_key(config)
    from vlmrm_gym.tools.train.run import plan_training, resume, start

    for name, text in plan_training(config).items():
        say(f"{name + ':':14}{text}")
    if command.dry_run:
        return
    folder = resumed or RunFolder(config.run_folder)
    try:
        with file.locating():
            if resumed:
                resume(config, resumed)
            else:
                start(config, folder)
    except (Interrupted, KeyboardInterrupt) as error:
        say(_resume_hint(folder), error=True)
        sys.exit(128 + getattr(error, "signal", signal.SIGINT))
    except (ConfigError, RunError):
        raise
    except Exception:  # bad input, too: a program that fails on a frame, a server's budget that is used up
        say(_resume_hint(folder), error=True)
        raise
    say(f"Done: {folder.path}. To evaluate it: vlmrm-gym evaluate {folder.path}")


def configure(source: Path | None, arguments: Sequence[str]) -> Config:
    """Read the configuration of a file and flags; see `read_settings`."""
    _, flags = read_flags(arguments)
    return read_settings(source, flags, flags)[0]


def read_flags(arguments: Sequence[str], about: str = "") -> tuple[Train, dict[Key, Any]]:
    """The command, and the settings that flags give. Parameters of the algorithm are read here, the rest by tyro."""
    words, options, waiting = [], {}, [*arguments]
    given: set[Key] = set()
    own = {*Train.__dataclass_fields__, *names_of(())}
    while waiting:
        flag, equals, value = (word := waiting.pop(0)).partition("=")
        word_key = flag.removeprefix("--").replace("-", "_") if flag.startswith("--") else ""
        *section, name = key = tuple(FLAGS.get(word_key, word_key).split("."))
        positive = name.removeprefix("no_")
        if section == ["rl"] and positive not in names_of(("rl",)):
            is_alone = not waiting or waiting[0].startswith("--")
            text = value if equals else "true" if is_alone else waiting.pop(0)
            options[key] = read_flag(text) if text else text
        elif not section and name not in own and (near := difflib.get_close_matches(name, FLAGS, 1, cutoff=0.85)):
            meant = f"is not known. Did you mean --{near[0].replace('_', '-')}?"
            raise ConfigError([Problem.of(flag, meant)], "the flags")
        else:
            words.append(f"--{'.'.join(key)}{equals}{value}" if word_key in FLAGS else word)
            given.add((*section, positive))
    registry = tyro_rules(strict=False)
    command = tyro.cli(Train, args=words, prog="vlmrm-gym train", description=about, registry=registry)
    return command, {key: value for key, value in flatten(command.settings).items() if key in given} | options


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
