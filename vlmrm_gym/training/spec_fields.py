"""Keys of a file and flags of a command, made from the fields of a specification: a field is written once."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, field, fields, make_dataclass
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, Union, get_args, get_type_hints

import tyro
from pydantic import AfterValidator, Field

from vlmrm_gym.rewards.clip_options import Prompt
from vlmrm_gym.training.config_types import Flag, Integer, Number, Texts

_TYPES: Mapping[Any, Any] = {bool: Flag, int: Annotated[Integer, Field(le=10**9)], float: Number}
"""How a file and a flag say a value of a type. Integers are at most 10^9: more than memory holds."""


def with_spec_fields(
    specification: type[Any],
    *,
    after: type[Any] = object,
    without: Collection[str] = (),
    more_help: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """A dataclass with the fields of a specification, all optional: the base of a file's section or of a command.

    Types, defaults, help and checks are those of the specification; a field without a default is None.

    Args:
        specification: A dataclass whose fields have docstrings, and `metadata["check"]`: from the field's name and a
            value to the value, or an error whose message begins with the name in backticks.
        after: A keyword-only dataclass, whose fields come first.
        without: Fields that are left out, because the section or command has others in their place.
        more_help: Sentences that are added to the help of fields.
    """
    hints, help = get_type_hints(specification), field_docstrings(specification)
    made = []
    for one in fields(specification):
        if one.name in without:
            continue
        kind, default = _in_files(hints[one.name]), one.default
        if default is MISSING:
            kind, default = kind | None, None
        text = f"{help[one.name]} {more_help.get(one.name, '')}".strip()
        kind = Annotated[kind, AfterValidator(partial(_checked, one)), tyro.conf.arg(help=text)]
        made.append((one.name, kind, field(default=default)))
    return make_dataclass(f"Some{specification.__name__}", made, bases=(after,), kw_only=True)


def spec_settings(specification: type[Any], given: Any) -> dict[str, Any]:
    """The fields of a specification that a section or a command has, and their values."""
    return {one.name: getattr(given, one.name) for one in fields(specification) if hasattr(given, one.name)}


def field_docstrings(specification: type[Any]) -> dict[str, str]:
    """The docstring under each field of a class, on one line."""
    tree: Any = ast.parse(textwrap.dedent(inspect.getsource(specification)))
    return {
        ast.unparse(statement.target): " ".join(ast.literal_eval(text.value).split())
        for statement, text in pairwise(tree.body[0].body)
        if isinstance(statement, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def _in_files(hint: Any) -> Any:
    """The type of a key, from that of a field."""
    kinds = get_args(hint) if type(None) in get_args(hint) or hint == Prompt else (hint,)
    if set(get_args(Prompt)) <= set(kinds):
        kinds = (Texts, *(kind for kind in kinds if kind not in get_args(Prompt)))
    return Union[tuple(_TYPES.get(kind, kind) for kind in kinds)]  # noqa: UP007


def _checked(one: Any, value: Any) -> Any:
    """Check a value as a specification's field says. The reader of a file adds the key, the line and the value."""
    if value is None and one.default is MISSING:
        return value
    check: Callable[[str, Any], Any] = one.metadata["check"]
    try:
        return check(one.name, value)
    except (ValueError, TypeError) as error:
        raise ValueError(str(error).partition(". Received")[0].removeprefix(f"`{one.name}` ")) from None
