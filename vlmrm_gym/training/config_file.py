"""Configuration files: read with line numbers, and all that is wrong with them said at once."""

import difflib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from vlmrm_gym.training.config import Config, ConfigDumper, ConfigLoader

Key = tuple[str, ...]
"""Where something stands: ("rl", "tau")."""


class ConfigError(ValueError):
    """All that is wrong with a configuration."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([f"{count} in {source}:", *(f"  {problem}" for problem in problems)]))


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with a configuration."""

    key: Key
    message: str
    line: int | None = None
    """Of the file."""


@dataclass(frozen=True)
class ConfigFile:
    """What stands in a file, and where."""

    config: Config
    """Of the values that are right by themselves."""
    lines: Mapping[Key, int]
    """Line numbers from 1, of values and sections."""
    problems: tuple[Problem, ...]
    """Of the values that are not."""


_ADAPTER = TypeAdapter(Config)


def read_config_file(path: Path) -> ConfigFile:
    """Read a file.

    Raises:
        ConfigError: There is none, or it is no YAML mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [f"it cannot be read: {error}"]) from None
    try:
        node = yaml.compose(text, Loader=ConfigLoader)
        loaded = yaml.load(text, Loader=ConfigLoader)
        lines: dict[Key, int] = {}
        problems = list(_number_lines(node, (), lines))
    except RecursionError:
        raise ConfigError(str(path), ["it refers to itself, or is nested too deeply"]) from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f"line {mark.line + 1}: "
        raise ConfigError(str(path), [f"{line}this is no YAML: {getattr(error, 'problem', error)}"]) from None
    if loaded is None:
        loaded = {}
    if not isinstance(loaded, dict):
        raise ConfigError(str(path), [f"a configuration is a mapping of keys to values. Received {loaded!r}"])
    config, wrong = right_part(_with_text_keys(loaded))
    problems += [replace(problem, line=lines.get(problem.key)) for problem in wrong]
    return ConfigFile(config, lines, tuple(problems))


def right_part(values: dict[str, Any]) -> tuple[Config, list[Problem]]:
    """The configuration that is left when what is wrong is taken out of `values`; and what is wrong."""
    wrong = _problems_of_values(values)
    for problem in wrong:
        _remove(values, problem.key)
    return _ADAPTER.validate_python(values), wrong


def _problems_of_values(values: Mapping[str, Any]) -> list[Problem]:
    """Unknown keys, wrong types and values out of their ranges."""
    try:
        _ADAPTER.validate_python(values)
    except ValidationError as error:
        problems: dict[Key, Problem] = {}
        for one in error.errors():
            key = _known_part(tuple(str(part) for part in one["loc"]))
            if one["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
                problems[key] = Problem(key, _unknown(key))
            elif key not in problems or "Value error" in one["msg"]:
                rule = re.sub("^Value error, ", "", re.sub("^(Input|List|String) should", "must", one["msg"]))
                if one["type"] in ("dataclass_type", "dict_type"):
                    rule = "must be a mapping of keys to values"
                received = one["input"]
                problems[key] = Problem(key, f"`{'.'.join(key)}` {rule}. Received {received!r}.")
        return list(problems.values())
    return []


def describe(problems: Iterable[Problem], file: ConfigFile, config: Config) -> list[str]:
    """Problems, each with the line of the file that it comes from, in the order of the lines.

    Args:
        problems: Of the file, and of `config`.
        file: Where some of its values come from.
        config: With what flags have changed.
    """
    in_file, now = flat(file.config), flat(config)
    described = []
    for problem in problems:
        line = problem.line
        if line is None and in_file.get(problem.key) == now.get(problem.key):
            line = file.lines.get(problem.key)
        described.append((line or sys.maxsize, f"{'' if line is None else f'line {line}: '}{problem.message}"))
    return [text for _, text in sorted(described, key=lambda pair: pair[0])]


def as_values(config: Config) -> dict[str, Any]:
    """A configuration as a file's mapping; what is None is left out."""
    return {
        name: {key: own for key, own in value.items() if own is not None} if name in _SECTIONS else value
        for name, value in asdict(config).items()
        if value is not None
    }


def to_yaml(config: Config) -> str:
    """A configuration as a file has it."""
    return yaml.dump(as_values(config), Dumper=ConfigDumper, sort_keys=False, allow_unicode=True)


def flat(config: Config) -> dict[Key, Any]:
    """Every key and its value."""
    every: dict[Key, Any] = {}
    for name, value in asdict(config).items():
        every |= {(name, key): own for key, own in value.items()} if name in _SECTIONS else {(name,): value}
    return every


def _with_text_keys(values: Mapping[Any, Any]) -> dict[str, Any]:
    """A file's values, without those that are left empty; YAML reads `on` and `1` as no texts."""
    return {
        str(name): _with_text_keys(value) if str(name) in _SECTIONS and isinstance(value, dict) else value
        for name, value in values.items()
        if value is not None
    }


_SECTIONS: Mapping[str, Any] = {name: hint for name, hint in get_type_hints(Config).items() if is_dataclass(hint)}


def _names(section: Key) -> list[str]:
    """The keys of a section; those at the top for ()."""
    return [one.name for one in fields(_SECTIONS[section[0]] if section else Config)]


def _known_part(location: Key) -> Key:
    """Where a problem stands, without pydantic's names for the branches of a union and the places in a list."""
    depth = 2 if location[0] in _SECTIONS else 1
    return location[:depth]


def _unknown(key: Key) -> str:
    """What is said of an unknown key."""
    section, name = key[:-1], key[-1]
    where = f" in `{section[0]}`" if section else ""
    elsewhere = [(*other, name) for other in ((), *((own,) for own in _SECTIONS)) if name in _names(other)]
    if elsewhere:
        return f"`{'.'.join(key)}` is not known{where}. Its place is `{'.'.join(elsewhere[0])}`."
    every = {other: (*own, other) for own in ((), *((own,) for own in _SECTIONS)) for other in _names(own)}
    near = difflib.get_close_matches(name, _names(section), 1) or difflib.get_close_matches(name, every, 1)
    if near:
        meant = (*section, near[0]) if near[0] in _names(section) else every[near[0]]
        return f"`{'.'.join(key)}` is not known. Did you mean `{'.'.join(meant)}`?"
    return f"`{'.'.join(key)}` is not known. Known{where}: {', '.join(_names(section))}."


def _remove(values: dict[str, Any], key: Key) -> None:
    for name in key[:-1]:
        values = values[name]
    values.pop(key[-1], None)


def _number_lines(node: Any, key: Key, lines: dict[Key, int]) -> Iterable[Problem]:
    """Note the lines of all keys; those that stand twice."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            own, line = (*key, str(name.value)), name.start_mark.line + 1
            if own in lines:
                yield Problem(own, f"`{'.'.join(own)}` is given twice, in line {lines[own]} too. Leave one.", line)
            lines[own] = line
            yield from _number_lines(value, own, lines)
