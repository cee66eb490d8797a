"""Which fields of a specification decide answers, so that answers of an equal one are found again."""

from dataclasses import field, fields
from typing import Any


def undecisive(default: Any, **options: Any) -> Any:
    """A field that does not decide answers: those that were given with another value are used again."""
    return field(default=default, metadata={"decides": False}, **options)


def deciding_fields(specification: Any) -> dict[str, Any]:
    """The names and values of the fields of a dataclass that decide answers."""
    decide = [one.name for one in fields(specification) if one.metadata.get("decides", True)]
    return {name: getattr(specification, name) for name in decide}


def undeciding_fields(kind: Any) -> list[str]:
    """The names of the fields of a dataclass that do not decide answers."""
    return [one.name for one in fields(kind) if not one.metadata.get("decides", True)]
