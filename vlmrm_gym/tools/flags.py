"""Flags that tyro makes of dataclasses: their values as a person writes them, and their defaults, said once."""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro
from tyro import constructors

from vlmrm_gym.scoring.options import read_help
from vlmrm_gym.tools.yaml_values import yaml_flag

_WORDS = {bool: "", int: "N", float: "X", str: "TEXT", Path: "PATH"}


def word_of(hint: Any) -> str:
    """The kind of value that a flag of this type takes; empty if it takes none. What is not below is YAML."""
    origin, kinds = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return next(
            (one.metavar for one in kinds if isinstance(one, constructors.PrimitiveConstructorSpec)), word_of(kinds[0])
        )
    if origin is Literal:
        return "|".join(str(one) for one in kinds if one is not None)
    if origin in (list, tuple):
        return f"{word_of(kinds[0])} ..."
    if origin in (Union, UnionType) and not _is_yaml(hint):
        return "|".join(word_of(one) or "True|False" for one in kinds if one is not NoneType)
    return _WORDS.get(hint, "YAML")


def is_said(default: Any) -> bool:
    """Tell whether a default is a value that help shows, and not the absence of one."""
    return bool(default) or type(default) in (int, float)


def plain(text: str, default: Any) -> str:
    """The docstring of a field, as help of a flag: without markup; what None means is the default, if None is."""
    text = text.replace("`", "")
    if is_said(default):
        return text
    return re.sub(r"\([Nn]one([:;])", r"(default\1", text.replace(" None: ", " Default: "))


def tyro_rules(*, strict: bool) -> constructors.ConstructorRegistry:
    """Make tyro read integers (1e6, too) as YAML, and values that may be mappings, or functions, which have names.

    Not `strict`, it leaves what it cannot read as it is, for checks that report all problems at once.
    """
    registry = constructors.ConstructorRegistry()

    @registry.primitive_rule
    def read(flag: constructors.PrimitiveTypeInfo) -> constructors.PrimitiveConstructorSpec[Any] | None:
        if flag.type is int:
            return yaml_flag(int, strict=strict)
        if _is_yaml(flag.type):
            return yaml_flag(object, strict=strict)
        if NoneType not in get_args(flag.type):
            return None
        kind: Any = Union[tuple(one for one in get_args(flag.type) if one is not NoneType)]  # noqa: UP007
        spec: Any = constructors.ConstructorRegistry.get_primitive_spec(
            constructors.PrimitiveTypeInfo.make(kind, flag.markers)
        )
        return replace(
            spec,
            instance_from_str=lambda words: None if words == ["None"] else spec.instance_from_str(words),
            str_from_instance=lambda given: ["None"] if given is None else spec.str_from_instance(given),
            choices=spec.choices and (*spec.choices, "None"),
        )

    @registry.struct_rule
    def show(flags: constructors.StructTypeInfo) -> constructors.StructConstructorSpec | None:
        if not is_dataclass(flags.type):
            return None
        hints, texts, shown = get_type_hints(flags.type, include_extras=True), read_help(flags.type), []
        for one in fields(flags.type):
            default = one.default if one.default_factory is MISSING else one.default_factory()
            default = getattr(flags.default, one.name, tyro.MISSING_NONPROP if default is MISSING else default)
            hint, text = _as_shown(one.name, hints[one.name], default), plain(texts.get(one.name, ""), default)
            shown.append(constructors.StructFieldSpec(one.name, hint, default, text))
        return constructors.StructConstructorSpec(flags.type, tuple(shown))

    return registry


def _is_yaml(hint: Any) -> bool:
    return bool({Mapping, Callable} & {get_origin(one) for one in get_args(hint)})


def _as_shown(name: str, hint: Any, default: Any) -> Any:
    """The type of a flag, with what help shows for its value, and its default if that says something."""
    is_required, word = default is tyro.MISSING_NONPROP, word_of(hint)
    if tyro.conf.Positional in get_args(hint):
        word = name.upper() + " ..." * word.endswith(" ...")
        word = word if is_required else f"[{word}]"
    said = None if is_said(default) and not is_required else ""
    return Annotated[hint, tyro.conf.arg(metavar=word or None, help_behavior_hint=said)]
