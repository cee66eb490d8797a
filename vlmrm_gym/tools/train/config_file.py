"""Reads configuration files; errors, also those of constructors, have the key and the line."""

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import gymnasium as gym
import yaml

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.untrusted import read_text
from vlmrm_gym._util.validation import short_repr, truncate
from vlmrm_gym.rewards.saved import beside, map_files
from vlmrm_gym.tools.train.config import Config, RLConfig, mapping
from vlmrm_gym.tools.yaml_values import MAX_BYTES, ConfigDumper, as_whole, read_yaml

Key = tuple[str, ...]
"""The path of a key: ("rl", "tau")."""

ALIASES: Mapping[str, str] = {
    "target_prompts": "prompt",
    "baseline_prompts": "baseline",
    "pretrained_model": "model",
    "camera_config": "camera",
    "reward": "name",
    "reward_kwargs": "kwargs",
}
"""Words of the published format in `reward`, and of Python, in files and flags, and the keys here."""
SECTIONS: Mapping[str, Any] = {name: hint for name, hint in get_type_hints(Config).items() if is_dataclass(hint)}
_MAX_PROBLEMS = 50  # in a message


@dataclass(frozen=True)
class Problem:
    """An error in a configuration: its message begins with the key, in backticks. No key: the file cannot be read."""

    key: Key
    message: str
    line: int | None = None

    @classmethod
    def of(cls, name: str, rule: str) -> "Problem":
        """An error of `name`, such as "rl.tau"."""
        return cls(tuple(name.split(".")), f"`{truncate(name)}` {rule}")


class ConfigError(InputError):
    """A configuration, from `where`, cannot be used; the message has all that is known to be wrong."""

    def __init__(self, problems: Sequence[Problem], where: str = "the settings") -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"{'' if one.line is None else f'line {one.line}: '}{one.message}" for one in problems[:_MAX_PROBLEMS]]
        lines += [f"... and {len(problems) - _MAX_PROBLEMS} more"] * (len(problems) > _MAX_PROBLEMS)
        super().__init__("\n  ".join([f"{count} in {where}:", *lines]))

    @classmethod
    def of(cls, name: str, rule: str) -> "ConfigError":
        """The error of one setting; see `Problem.of`."""
        return cls([Problem.of(name, rule)])


@dataclass(frozen=True)
class ConfigFile:
    """The values of a file and of flags; by default of neither."""

    name: str = "the flags"
    values: Mapping[str, Any] = field(default_factory=dict)
    """The values by the keys of this package, in sections."""
    twice: tuple[Problem, ...] = ()
    """Keys that are given twice."""
    places: Mapping[Key, tuple[int, str]] = field(default_factory=dict)
    """The line of each key of the file, from 1, and the key as written there, possibly an alias."""

    @cached_property
    def _validated(self) -> tuple[Config, list[Problem]]:
        return validate(self.values)

    @property
    def config(self) -> Config:
        """The configuration of the valid values."""
        return self._validated[0]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Say what is wrong with the others, and which keys are given twice."""
        return (*self.twice, *self._validated[1])

    def changed(self, changes: Mapping[Key, Any]) -> "ConfigFile":
        """Replace the values of keys, as flags do; None stands for the default."""
        values = {name: dict(value) if isinstance(value, dict) else value for name, value in self.values.items()}
        for (*section, name), value in changes.items():
            target = values.setdefault(section[0], {}) if section else values
            if isinstance(target, dict):  # else that is a problem
                target[name] = value
                if value is None:
                    del target[name]
        return replace(
            self,
            values=values,
            twice=tuple(one for one in self.twice if one.key not in changes),
            places={key: place for key, place in self.places.items() if not {key[:1], key[:2]} & changes.keys()},
        )

    @contextmanager
    def locating(self) -> Iterator[None]:
        """Add the file, lines and its words to the errors of its settings."""
        try:
            yield
        except ConfigError as error:
            located = sorted(map(self._locate, error.problems), key=lambda one: one.line or sys.maxsize)
            raise ConfigError(located, self.name) from error.__cause__

    def _locate(self, problem: Problem) -> Problem:
        for length in range(len(problem.key), min(len(problem.key), 2) - 1, -1):
            if (key := problem.key[:length]) in self.places:
                line, word = self.places[key]
                name = rf"^`{re.escape('.'.join(key))}(?=[`.])"
                message = re.sub(name, lambda _, word=word: f"`{word}", problem.message)
                return replace(problem, line=problem.line or line, message=message)
        return problem


def read_config_file(path: Path) -> ConfigFile:
    """Read a file."""
    return read_config(read_text(path, MAX_BYTES), str(path), path.parent)


def read_config(text: str, name: str, folder: Path = Path()) -> ConfigFile:
    """Read the text of a file of that name. Pictures in it are relative to the folder."""
    try:
        node, loaded = read_yaml(text)
    except ValueError as error:
        raise ConfigError([Problem((), str(error))], name) from None
    if not isinstance(loaded, dict | None):
        rule = f"a configuration is a mapping of keys to values. Received {short_repr(loaded)}."
        raise ConfigError([Problem((), rule)], name)
    places: dict[Key, tuple[int, str]] = {}
    twice = tuple(_find_places(node, (), (), places))
    return ConfigFile(name, _map_reward(_own_keys(loaded or {}), partial(beside, folder)), twice, places)


def validate(values: Mapping[str, Any]) -> tuple[Config, list[Problem]]:
    """The configuration of the valid values, and what is wrong with the others: unknown keys, types and ranges.

    Keyword arguments of the algorithm are checked later, see `find_wrong_arguments`.
    """
    problems: list[Problem] = []
    return _check_section((), values, problems), problems


def _check_section(section: Key, values: Mapping[str, Any], problems: list[Problem]) -> Any:
    kind = SECTIONS[section[0]] if section else Config
    hints, checked = get_type_hints(kind), {}
    for name, value in values.items():
        try:
            if name not in names_of(section):
                if section != ("rl",):
                    raise ValueError(_place((*section, name)))
            elif is_dataclass(hints[name]):
                value = _check_section((name,), mapping(name, value), problems)
            elif check := kind.__dataclass_fields__[name].metadata.get("check"):
                value = check(name, as_whole(value) if int in (hints[name], *get_args(hints[name])) else value)
            checked[name] = value
        except (TypeError, ValueError) as error:
            problems.append(Problem.of(".".join((*section, name)), str(error).removeprefix(f"`{name}` ")))
    return RLConfig.of(checked) if kind is RLConfig else kind(**checked)


def _place(key: Key) -> str:
    """The rule for an unknown key: what it may have been meant to be."""
    every = {word: ("reward", word) for word in ALIASES}
    every |= {name: (*section, name) for section in ((), *((one,) for one in SECTIONS)) for name in names_of(section)}
    near_by = {name: place for name, place in every.items() if place[:-1] == key[:-1]}
    for known in (near_by, every):  # `resize_mode` is not a misspelling of `pretrained_model`
        if near := difflib.get_close_matches(truncate(key[-1]), known, 1, cutoff=0.7):
            return f"is not known. Did you mean `{'.'.join(known[near[0]])}`?"
    return f"is not known. Known{f' in `{key[0]}`' if key[1:] else ''}: {', '.join(names_of(key[:-1]))}."


def names_of(section: Key) -> list[str]:
    """The keys of a section; of the top level for ()."""
    return [one.name for one in fields(SECTIONS[section[0]] if section else Config) if one.name != "options"]


def flatten(config: Config) -> dict[Key, Any]:
    """Every key and its value."""
    every: dict[Key, Any] = {}
    for name, value in asdict(config).items():
        if name in SECTIONS:
            value |= value.pop("options", {})
        every |= {(name, key): own for key, own in value.items()} if name in SECTIONS else {(name,): value}
    return every


def to_yaml(config: Config, folder: Path = Path()) -> str:
    """A configuration as the text of a file in a folder."""

    def relative(one: str) -> str:
        return Path(one).relative_to(folder).as_posix() if Path(one).is_relative_to(folder) else one

    values: dict[str, Any] = {}
    for (*section, name), value in flatten(config).items():
        if value is not None:
            (values.setdefault(section[0], {}) if section else values)[name] = value
    return yaml.dump(_map_reward(values, relative), Dumper=ConfigDumper, sort_keys=False, allow_unicode=True)


def _map_reward(values: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Change the files that the reward of a configuration names."""
    return {name: map_files(value, change) if name == "reward" else value for name, value in values.items()}


def _own_keys(values: Mapping[Any, Any], section: str = "") -> dict[str, Any]:
    """Translate a file's keys, without those that are empty; YAML reads the keys `on` and `1` as other types."""
    keys = {}
    for name, value in values.items():
        name = name if isinstance(name, str) else short_repr(name)
        if (section, name) == ("rl", "rl_kwargs") and isinstance(value, dict):
            keys |= _own_keys(value, "rl_kwargs")
        elif value is not None:
            is_section = not section and name in SECTIONS and isinstance(value, dict)
            name = ALIASES.get(name, name) if section == "reward" else name
            keys[name] = _own_keys(value, name) if is_section else value
    return keys


def _find_places(node: Any, key: Key, written: Key, places: dict[Key, tuple[int, str]]) -> Iterable[Problem]:
    """Record where all keys are; yields a problem for each key that is given twice."""
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        text, line = str(name.value), name.start_mark.line + 1
        own, word = (*key, ALIASES.get(text, text) if key == ("reward",) else text), (*written, text)
        if word == ("rl", "rl_kwargs") and isinstance(value, yaml.MappingNode):
            yield from _find_places(value, key, word, places)
            continue
        if own in places:
            before, other = places[own]
            rule = f"is given twice: as `{other}` in line {before}. Leave one."
            yield Problem(own, f"`{truncate('.'.join(word))}` {rule}", line)
        places[own] = line, truncate(".".join(word))
        yield from _find_places(value, own, word, places)


_RAISED = (gym.error.Error, ValueError, TypeError, AssertionError, FileNotFoundError, ConnectionError, RuntimeError)
_RAISED += (ArithmeticError, MemoryError)
"""What constructors of environments, rewards and algorithms raise."""
_PARAMETERS = {("env_name",): "id", ("reward", "name"): "reward", ("reward", "kwargs"): "reward_kwargs"}
"""Parameters that are called otherwise in a configuration."""


@contextmanager
def constructing(config: Config, default: str) -> Iterator[None]:
    """Raise what a constructor raises as a ConfigError of the setting that its message names, else of `default`."""
    try:
        yield
    except ConfigError:
        raise
    except _RAISED as error:
        text = truncate(str(error) or type(error).__name__, 1_000)  # a MemoryError has no text
        key = _find_key(error, config, tuple(default.split(".")))
        parameter = f"`{_PARAMETERS.get(key, key[-1])}`"
        rest = text.removeprefix(parameter) if text.startswith(parameter) else f": {text}"
        raise ConfigError([Problem(key, f"`{'.'.join(key)}`{rest}")]) from error


def _find_key(error: Exception, config: Config, default: Key) -> Key:
    section, labeler = ("reward",) if default == ("env_name",) else default[:1], ("reward", "labeler")
    settings = sorted(flatten(config).items(), key=lambda pair: pair[0][:-1] == section)  # its keys win
    # A labeler's fields are not those of the reward.
    settings = [pair for pair in settings if (pair[0] == labeler) == (default == labeler)]
    known = {_PARAMETERS.get(key, key[-1]): key for key, _ in settings}
    for key, value in settings:
        if isinstance(value, dict):
            known |= {str(name): (*key, str(name)) for name in value}
    named = re.findall(r"[`'](\w+)[`'=]", str(error))
    return next((known[name] for name in named if name in known), default)
