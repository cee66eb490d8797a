"""YAML with size limits that are checked before loading: with aliases, a short text can expand to a huge value."""

import re
from typing import Any

import yaml

from vlmrm_gym.validation import truncate

MAX_BYTES = 1_000_000
"""Maximum size of a file."""
_MAX_CHARACTERS = 10_000
"""Maximum length of a single text or number."""
_MAX_NODES = 10_000
"""Maximum number of values, keys, lists and mappings, counted again for each alias that repeats them."""
_MAX_DEPTH = 32
"""Maximum depth of nested lists and mappings."""


class ConfigLoader(yaml.SafeLoader):
    """Reads 3e-4 as a number, as YAML 1.2 does."""


ConfigLoader.yaml_implicit_resolvers = {
    key: list(pairs) for key, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
ConfigLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


class ConfigDumper(yaml.SafeDumper):
    """Quotes strings that `ConfigLoader` would read as numbers."""


ConfigDumper.yaml_implicit_resolvers = ConfigLoader.yaml_implicit_resolvers


def read_yaml(text: str) -> tuple[yaml.Node | None, Any]:
    """Parse a text into nodes, with line numbers, and its value; None if it is empty.

    Raises:
        ValueError: It is not YAML, refers to itself, or exceeds the limits above.
    """
    try:
        _check_bounds(text)
        return yaml.compose(text, Loader=ConfigLoader), yaml.load(text, Loader=ConfigLoader)
    except _OutOfBoundsError as error:
        raise ValueError(str(error)) from None
    # Explicit tags, such as `!!int ''`, make PyYAML raise all of these.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f"line {mark.line + 1}: "
        raise ValueError(f"{line}this is not valid YAML: {truncate(str(getattr(error, 'problem', error)))}") from None


class _OutOfBoundsError(Exception):
    """A text exceeds the limits."""


def _check_bounds(text: str) -> None:
    """Count the values that loading would build, from parser events.

    Raises:
        _OutOfBoundsError: It exceeds a limit.
    """
    opened: list[tuple[str | None, int]] = []  # open lists and mappings: anchor, and nodes before it
    anchored: dict[str, int] = {}  # nodes of each finished value with an anchor
    nodes = 0
    for event in yaml.parse(text, Loader=ConfigLoader):
        line = f"line {event.start_mark.line + 1}"
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor is not None:
                anchored[anchor] = nodes - before
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in [anchor for anchor, _ in opened]:
                raise _OutOfBoundsError(f"{line}: the alias {truncate(str(event.anchor))!r} refers to itself.")
            nodes += anchored.get(event.anchor, 0)  # PyYAML refuses an unknown one
        elif isinstance(event, yaml.NodeEvent):
            nodes += 1
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append((event.anchor, nodes - 1))
            elif event.anchor is not None:
                anchored[event.anchor] = 1
        length = len(event.value) if isinstance(event, yaml.ScalarEvent) else 0
        for what, number, most in (
            ("characters in a text", length, _MAX_CHARACTERS),
            ("levels of lists and mappings", len(opened), _MAX_DEPTH),
            ("values, counted again for each alias of them", nodes, _MAX_NODES),
        ):
            if number > most:
                raise _OutOfBoundsError(f"{line}: there may be at most {most:,} {what}. Received {number:,} or more.")
