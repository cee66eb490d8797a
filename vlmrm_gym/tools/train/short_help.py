"""The help of `vlmrm-gym train`: the flags that most trainings need. All others: --help-all."""

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

from rich.table import Table

from vlmrm_gym.scoring.options import read_help
from vlmrm_gym.tools.train.config import Config, RewardConfig, RLConfig
from vlmrm_gym.tools.train.config_types import FLAGS

_SECTIONS = {"": Config, "reward": RewardConfig, "rl": RLConfig}
SHOWN = {
    "the sentence": ("prompt", "model", "goal_images", "baseline", "alpha", "camera"),
    "another reward": ("reward", "reward_kwargs", "task_reward_weight", "labeler"),
    "the training": ("total_timesteps", "algorithm", "num_workers", "episode_length", "env_kwargs", "seed"),
    "the run": ("base_path", "run_name", "track"),
}
"""Flags by what they are about."""
_OF_COMMAND = {
    "--resume RUN": "the folder of a run to resume",
    "--dry-run": "print the plan only: environments, updates, memory, downloads",
    "--trust-code": "run the code that the configuration file names",
    "--help-all": "every flag: environments, scoring, workers, Ray, preferences, logging",
}
_WORDS = {int: "N", float: "X", str: "TEXT", dict: "YAML", list: "TEXT ..."}


def short_help(about: str) -> Iterator[Any]:
    """Yield what is printed: the usage, the description, and a table of flags for each of `SHOWN`."""
    yield "usage: vlmrm-gym train [ID | CONFIG.yaml] [flags]\n\n" + about
    for title, flags in SHOWN.items():
        rows = [_describe(flag) for flag in flags]
        rows += _OF_COMMAND.items() if title == "the run" else []
        table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column()
        for flag, text in rows:
            table.add_row(f"  {flag}", text)
        yield table


def _describe(flag: str) -> tuple[str, str]:
    """A flag with its kind of value, and its help with the default."""
    section, _, name = FLAGS.get(flag, flag).rpartition(".")
    owner = _SECTIONS[section]
    (one,) = (one for one in fields(owner) if one.name == name)
    text, default = re.split(r"\. |\.$", read_help(owner)[name])[0], one.default
    text = text[0].lower() + text[1:] if text[1:2].islower() and not text.startswith("MuJoCo") else text
    if default not in (None, False, "") and isinstance(default, str | int | float):
        text += f" (default: {default})"
    word = _word(owner.__annotations__.get(name, one.type))
    return f"--{flag.replace('_', '-')}{word and f' {word}'}", re.sub(r"`([^`]*)`", r"\1", text)


def _word(hint: Any) -> str:
    """The kind of value that a flag takes, as a person writes it."""
    kinds = [one for one in (get_args(hint) if type(None) in get_args(hint) else (hint,)) if one is not type(None)]
    kind = kinds[0]
    while not isinstance(kind, type) and get_origin(kind) is not Literal and get_args(kind):
        kind = get_origin(kind) if get_origin(kind) in _WORDS else get_args(kind)[0]
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return "" if kind is bool else _WORDS.get(kind, "YAML")
