"""Keys of a file and flags of a command, made from the fields of a specification: a field is written once."""

import ast
import inspect
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import MISSING, field, fields, make_dataclass
from itertools import pairwise
from typing import Annotated, Any, Union, get_args, get_type_hints

import tyro
from pydantic import Field

from vlmrm_gym.rewards.clip import Prompt
from vlmrm_gym.training.config_types import Flag, Integer, Number, Texts

_TYPES: Mapping[Any, Any] = {bool: Flag, int: Annotated[Integer, Field(le=10**9)], float: Number}
"""How a file and a flag say a value of a type. Integers are at most 10^9: more than memory holds."""


def with_spec_fields(
    specification: type[Any], *, after: type[Any], more_help: Mapping[str, str], aliases: Mapping[str, Collection[str]]
) -> Any:
    """A dataclass with the fields of a specification, all optional: the base of a file's section.

    Types, defaults and help are those of the specification, which checks values when it is made; a field without a
    default is None.

    Args:
        specification: A dataclass whose fields have docstrings.
        after: A keyword-only dataclass, whose fields come first.
        more_help: Sentences that are added to the help of fields.
        aliases: Other flags of fields, such as "--prompt".
    """
    tree: Any = ast.parse(textwrap.dedent(inspect.getsource(specification)))
    help = {
        ast.unparse(statement.target): " ".join(ast.literal_eval(text.value).split())
        for statement, text in pairwise(tree.body[0].body)
        if isinstance(statement, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    hints, made = get_type_hints(specification), []
    for one in fields(specification):
        kind, default = _in_files(hints[one.name]), one.default
        if default is MISSING:
            kind, default = kind | None, None
        text = f"{help[one.name]} {more_help.get(one.name, '')}".strip()
        kind = Annotated[kind, tyro.conf.arg(help=text, aliases=tuple(aliases.get(one.name, ())))]
        made.append((one.name, kind, field(default=default)))
    return make_dataclass(f"Some{specification.__name__}", made, bases=(after,), kw_only=True)


def _in_files(hint: Any) -> Any:
    """The type of a key, from that of a field."""
    kinds = get_args(hint) if type(None) in get_args(hint) or hint == Prompt else (hint,)
    if set(get_args(Prompt)) <= set(kinds):
        kinds = (Texts, *(kind for kind in kinds if kind not in get_args(Prompt)))
    return Union[tuple(_TYPES.get(kind, kind) for kind in kinds)]  # noqa: UP007
