"""YAML as files and flags have it: read with limits, as tyro's flags, and written."""

import math
import re
from typing import Any

import yaml
from tyro.constructors import PrimitiveConstructorSpec

from vlmrm_gym._util.validation import short_repr, truncate

MAX_BYTES = 100_000
"""Maximum size of a file."""
_MAX_VALUES = 10_000
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

    Raises a ValueError if it is not YAML, or exceeds the limits above.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"it may have at most {MAX_BYTES:,} bytes. Received more.")
    try:
        loader = ConfigLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None, None
        _check_size(node)
        return node, loader.construct_document(node)
    except RecursionError:
        line, problem = "", f"there may be at most {_MAX_DEPTH} levels of lists and mappings"
    # Explicit tags, such as `!!int ''`, make PyYAML raise all of these.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        mark, problem = getattr(error, "problem_mark", None), truncate(str(getattr(error, "problem", error)))
        line = "" if mark is None else f"line {mark.line + 1}: "
    raise ValueError(f"{line}this is not valid YAML: {problem}")


def _check_size(node: yaml.Node) -> None:
    """Walk through all values, as often as aliases repeat them: a short text can stand for a huge value."""
    count, waiting = 0, [(node, 0)]
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > _MAX_VALUES or depth > _MAX_DEPTH:
            most = f"{_MAX_VALUES:,} values, counted again for each alias of them"
            most = most if count > _MAX_VALUES else f"{_MAX_DEPTH} levels of lists and mappings"
            raise yaml.MarkedYAMLError(problem=f"there may be at most {most}", problem_mark=node.start_mark)
        if isinstance(node, yaml.MappingNode):
            waiting += [(one, depth + 1) for pair in node.value for one in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(one, depth + 1) for one in node.value]


def read_flag(given: Any) -> Any:
    """Read a flag as YAML. What is no YAML stays a text: its checks tell. From Python it may be a value already."""
    try:
        return read_yaml(given)[1] if isinstance(given, str) else given
    except ValueError:
        return given


def as_whole(given: Any) -> Any:
    """Return 1e6 as an integer, and anything else as it is."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def yaml_flag(*kinds: type[Any], strict: bool = False) -> PrimitiveConstructorSpec[Any]:
    """Make tyro read and show a flag as YAML, of which JSON is a part; `strict` refuses what it cannot read."""

    def read(words: list[str]) -> Any:
        (text,) = words
        value = None if text == "None" else read_yaml(text)[1] if strict else read_flag(text)
        if kinds == (int,):
            value = as_whole(value)
            if strict and type(value) is not int:
                raise ValueError(f"must be an integer. Received {short_repr(text)}.")
        return value

    def show(given: Any) -> list[str]:
        if given is None:
            return ["None"]
        text = yaml.dump(given, Dumper=ConfigDumper, default_flow_style=True, width=math.inf)
        return [text.removesuffix("...\n").strip()]  # the end of a document, after a value that is no collection

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="N" if kinds == (int,) else "YAML",
        instance_from_str=read,
        is_instance=lambda given: isinstance(given, kinds),
        str_from_instance=show,
    )
