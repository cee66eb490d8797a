"""YAML from anywhere: PyYAML's safe loader, with limits that are checked before anything is built. YAML in flags."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin

import yaml
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from vlmrm_gym._util.validation import truncate

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


def read_flag(text: str) -> Any:
    """The value of a flag that is YAML. What is no YAML stays a text: its checks tell."""
    try:
        return read_yaml(text)[1]
    except ValueError:
        return text


def yaml_flag(metavar: str, *kinds: type[Any], read: Callable[[str], Any] = read_flag) -> PrimitiveConstructorSpec[Any]:
    """How tyro reads and shows a flag whose value is YAML, of these types."""

    def show(given: Any) -> list[str]:
        if given is None:
            return ["None"]
        text = yaml.dump(given, Dumper=ConfigDumper, default_flow_style=True, width=math.inf)
        return [text.removesuffix("...\n").strip()]  # the end of a document, after a value that is no collection

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: None if words == ["None"] else read(words[0]),
        is_instance=lambda given: isinstance(given, kinds),
        str_from_instance=show,
    )


def yaml_flags(read: Callable[[str], Any] = read_flag) -> ConstructorRegistry:
    """Makes tyro read flags as YAML whose values may be mappings, such as cameras, or functions, which have names."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def rule(flag: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        is_yaml = {Mapping, Callable} & {get_origin(one) for one in get_args(flag.type)}
        return yaml_flag("YAML", object, read=read) if is_yaml else None

    return registry
