"""Reads configuration files with line numbers and reports all errors at once."""

import difflib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from vlmrm_gym.errors import InputError
from vlmrm_gym.training.config import ALIASES, Config
from vlmrm_gym.training.plain_yaml import MAX_BYTES, ConfigDumper, read_yaml
from vlmrm_gym.validation import short_repr, truncate

Key = tuple[str, ...]
"""The path of a key: ("rl", "tau")."""

_MAX_SHOWN = 50
"""Maximum number of problems in a message."""


class ConfigError(InputError):
    """All errors in a configuration."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        more = [f"... and {len(problems) - _MAX_SHOWN} more"] if len(problems) > _MAX_SHOWN else []
        lines = (f"  {problem}" for problem in [*problems[:_MAX_SHOWN], *more])
        super().__init__("\n".join([f"{count} in {source}:", *lines]))


@dataclass(frozen=True)
class Problem:
    """An error in a configuration."""

    key: Key
    message: str
    line: int | None = None
    """Line in the file."""

    @classmethod
    def of(cls, name: str, rule: str) -> "Problem":
        """An error of `name`, such as "rl.tau", with a message that begins with that name."""
        return cls(tuple(name.split(".")), f"`{name}` {rule}")


@dataclass(frozen=True)
class ConfigFile:
    """The contents of a file, with line numbers."""

    config: Config
    """Configuration of the valid values."""
    lines: Mapping[Key, int]
    """Line numbers of values and sections, from 1."""
    problems: tuple[Problem, ...]
    """Problems with the invalid values."""
    words: Mapping[Key, str] = field(default_factory=dict)
    """Each key as written in the file, possibly an alias."""


_ADAPTER = TypeAdapter(Config)


def read_config_file(path: Path) -> ConfigFile:
    """Read a file.

    Raises:
        ConfigError: It cannot be read, or is not a YAML mapping.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it may have at most {MAX_BYTES:,} bytes. Received more.")
        node, loaded = read_yaml(data.decode())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [f"it cannot be read: {error}"]) from None
    except ValueError as error:
        raise ConfigError(str(path), [str(error)]) from None
    lines: dict[Key, int] = {}
    words: dict[Key, str] = {}
    problems = list(_number_lines(node, (), (), lines, words))
    if loaded is None:
        loaded = {}
    if not isinstance(loaded, dict):
        raise ConfigError(str(path), [f"a configuration is a mapping of keys to values. Received {short_repr(loaded)}"])
    config, wrong = drop_invalid(_without_aliases(_with_text_keys(loaded)))
    problems += [replace(_reworded(problem, words), line=lines.get(problem.key)) for problem in wrong]
    return ConfigFile(config, lines, tuple(problems), words)


def drop_invalid(values: dict[str, Any]) -> tuple[Config, list[Problem]]:
    """Remove invalid values from `values`; returns the remaining configuration and the problems."""
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
                problems[key] = Problem(key, f"`{_written(key)}` {rule}. Received {short_repr(received)}.")
        return list(problems.values())
    return []


def without_alias(key: Key) -> Key:
    """The key that an alias stands for; any other key unchanged."""
    meant = ALIASES.get(".".join(key))
    return tuple(meant.split(".")) if meant else key


def describe(
    problems: Iterable[Problem], file: ConfigFile, config: Config, flag_words: Mapping[Key, str] | None = None
) -> list[str]:
    """Problems with the user's own key names, sorted by line.

    Args:
        problems: Problems of the file and of `config`.
        file: The file that some values come from.
        config: The file's configuration, as flags have changed it.
        flag_words: Aliases used by flags, by key.
    """
    in_file, now = flatten(file.config), flatten(config)
    described = []
    for problem in problems:
        line, key = problem.line, _known_part(problem.key)
        if line is None and in_file.get(key) == now.get(key):
            line = file.lines.get(problem.key, file.lines.get(key))
        if problem.line is None:
            problem = _reworded(problem, (flag_words or {}) if line is None else file.words)
        described.append((line or sys.maxsize, f"{'' if line is None else f'line {line}: '}{problem.message}"))
    return [text for _, text in sorted(described, key=lambda pair: pair[0])]


def _reworded(problem: Problem, words: Mapping[Key, str]) -> Problem:
    key = _known_part(problem.key)
    if key not in words or f"`{words[key]}" in problem.message:
        return problem
    return replace(problem, message=problem.message.replace(f"`{_written(key)}", f"`{words[key]}"))


def as_values(config: Config) -> dict[str, Any]:
    """A configuration as a file's mapping, without values that are None."""
    return {
        name: {key: own for key, own in value.items() if own is not None} if name in _SECTIONS else value
        for name, value in asdict(config).items()
        if value is not None
    }


def to_yaml(config: Config) -> str:
    """A configuration as the text of a file."""
    return yaml.dump(as_values(config), Dumper=ConfigDumper, sort_keys=False, allow_unicode=True)


def flatten(config: Config) -> dict[Key, Any]:
    """Every key and its value."""
    every: dict[Key, Any] = {}
    for name, value in asdict(config).items():
        every |= {(name, key): own for key, own in value.items()} if name in _SECTIONS else {(name,): value}
    return every


def _with_text_keys(values: Mapping[Any, Any]) -> dict[str, Any]:
    """A file's values without empty ones, with string keys: YAML reads `on` and `1` as other types."""
    return {
        name if isinstance(name, str) else short_repr(name): (
            _with_text_keys(value) if name in _SECTIONS and isinstance(value, dict) else value
        )
        for name, value in values.items()
        if value is not None
    }


def _without_aliases(values: dict[str, Any]) -> dict[str, Any]:
    """A file's values under their own keys instead of aliases."""
    return {
        name: {without_alias((name, key))[-1]: own for key, own in value.items()}
        if name in _SECTIONS and isinstance(value, dict)
        else value
        for name, value in values.items()
    }


_SECTIONS: Mapping[str, Any] = {name: hint for name, hint in get_type_hints(Config).items() if is_dataclass(hint)}


def _names(section: Key) -> list[str]:
    """The keys of a section; of the top level for ()."""
    return [one.name for one in fields(_SECTIONS[section[0]] if section else Config)]


def _known_part(location: Key) -> Key:
    """The key of a problem, without pydantic's branches of unions and indices of lists."""
    depth = 2 if location[0] in _SECTIONS else 1
    return location[:depth]


def _written(key: Key) -> str:
    return truncate(".".join(key))


def _unknown(key: Key) -> str:
    """The message for an unknown key."""
    section, name = key[:-1], truncate(key[-1])
    where = f" in `{section[0]}`" if section else ""
    elsewhere = [(*other, name) for other in ((), *((own,) for own in _SECTIONS)) if name in _names(other)]
    if elsewhere:
        return f"`{_written(key)}` is not known{where}. Its place is `{'.'.join(elsewhere[0])}`."
    every = {other: (*own, other) for own in ((), *((own,) for own in _SECTIONS)) for other in _names(own)}
    every |= {word.rpartition(".")[2]: tuple(word.split(".")) for word in ALIASES}
    own = [*_names(section), *(word for word, (*place, _) in every.items() if tuple(place) == section)]
    near = _near(name, own) or _near(name, every)
    if near:
        meant = (*section, near[0]) if near[0] in own else every[near[0]]
        return f"`{_written(key)}` is not known. Did you mean `{'.'.join(meant)}`?"
    return f"`{_written(key)}` is not known. Known{where}: {', '.join(_names(section))}."


def _near(name: str, known: Iterable[str]) -> list[str]:
    """The nearest known name, if similar enough: `resize_mode` is not a misspelling of `pretrained_model`."""
    return difflib.get_close_matches(name, known, 1, cutoff=0.7)


def _remove(values: dict[str, Any], key: Key) -> None:
    for name in key[:-1]:
        values = values[name]
    values.pop(key[-1], None)


def _number_lines(node: Any, key: Key, written: Key, lines: dict[Key, int], words: dict[Key, str]) -> Iterable[Problem]:
    """Record lines and spellings of all keys; yields a problem for each duplicate key."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            word, line = (*written, str(name.value)), name.start_mark.line + 1
            own = without_alias((*key, str(name.value)))
            before, now = words.get(own, _written(word)), _written(word)
            if own in lines and before == now:
                yield Problem(own, f"`{now}` is given twice, in line {lines[own]} too. Leave one.", line)
            elif own in lines:
                message = f"`{before}`, in line {lines[own]}, and `{now}` are the same. Leave one."
                yield Problem(own, message, line)
            lines[own], words[own] = line, now
            yield from _number_lines(value, own, word, lines, words)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            yield from _number_lines(value, (*key, str(i)), (*written, str(i)), lines, words)
