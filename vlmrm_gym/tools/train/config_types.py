"""Types of settings, YAML as it is read and written, and names of the published format."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import Field as DataclassField
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainValidator, Strict
from pydantic_core import PydanticCustomError
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from vlmrm_gym._util.validation import truncate

LEGACY_NAMES: Mapping[str, str] = {
    "CartPole-v1": "VLMRM/CartPole-v1",
    "MountainCarContinuous-v0": "VLMRM/MountainCarContinuous-v0",
    "Humanoid-v4": "VLMRM/Humanoid-v0",
}
"""Environment names of the published code, and their IDs here."""

ALIASES: Mapping[str, str] = {
    "target_prompts": "prompt",
    "baseline_prompts": "baseline",
    "pretrained_model": "model",
    "camera_config": "camera",
    "reward": "name",
    "reward_kwargs": "kwargs",
}
"""Words of the published format in `reward`, and of Python, in files and flags, and the keys here."""

REMOVED: Mapping[str, str] = {
    "reward.score_tolerance": "was removed. Use score_every.",
    "preferences.exploration": "was removed: before the first head actions are random. Leave it out.",
}
"""Keys of configurations that have been taken out, and what their error says."""

FLAGS: Mapping[str, str] = {
    **{name: f"reward.{name}" for name in ("prompt", "baseline", "alpha", "model", "camera", "labeler")},
    "reward": "reward.name",
    "reward_kwargs": "reward.kwargs",
    **{f"reward.{word}": f"reward.{name}" for word, name in ALIASES.items()},
}
"""Short flags, and those of the published format's words, with the keys that they stand for."""


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


def _whole(given: Any) -> Any:
    """Accept 1e6 as an integer."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _name(given: str) -> str:
    if given in (".", "..") or not given.strip() or not given.isprintable() or set(given) & set("/\\"):
        raise ValueError("must be a plain name: not empty, without / and \\, and neither . nor ..")
    return given


Integer = Annotated[int, Strict(), BeforeValidator(_whole), yaml_flag("INT", int)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]
Steps = Annotated[Integer, Field(ge=1, le=10**12)]
"""At most 10^12: years of training."""
StepsOrNone = Annotated[Integer, Field(ge=0, le=10**12)]
Count = Annotated[Integer, Field(ge=1, le=10**9)]
"""At most 10^9: more than memory holds."""
Fraction = Annotated[Number, Field(ge=0, le=1)]
Name = Annotated[str, AfterValidator(_name)]
"""Name of a file or folder, without a path."""
Texts = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]
YAMLMapping = Annotated[dict[str, Any], yaml_flag("YAML", dict)]
LabelerValue = Annotated[Any, yaml_flag("YAML", dict, str)]
"""A labeler's kind, "package.module:attribute" or mapping form, as `resolve_labeler` takes it."""
Kind = TypeVar("Kind", bound=type[Any])
AlgorithmName = Literal["SAC", "TD3", "DDPG", "TQC", "CrossQ", "DQN", "QRDQN", "PPO", "A2C"]


class Section:
    """A section without other keys than its fields."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


def with_checks(section: Kind) -> Kind:
    """Class decorator: fields that a section inherits are checked by their own checks, as constructors check them."""
    for base in filter(is_dataclass, section.__bases__):
        hints = get_type_hints(base)
        for one in fields(base):
            if one.name not in section.__annotations__ and "check" in one.metadata:
                kind = Annotated[int, yaml_flag("INT", int)] if hints[one.name] is int else hints[one.name]
                section.__annotations__[one.name] = Annotated[kind, PlainValidator(partial(_check, one))]
    return section


def _check(own: "DataclassField[Any]", given: Any) -> Any:
    """What a field's check makes of a value; 1e6 is an integer here."""
    is_whole = int in (own.type, *get_args(own.type))
    try:
        return own.metadata["check"](own.name, _whole(given) if is_whole else given)
    except (TypeError, ValueError) as error:
        raise PydanticCustomError("own_check", "{rule}", {"rule": str(error).removeprefix(f"`{own.name}` ")}) from error
