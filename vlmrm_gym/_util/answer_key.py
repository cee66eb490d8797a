"""Keys of answers: specifications whose fields that affect answers are equal share their stored answers."""

import json
from dataclasses import fields
from typing import Any

UNAFFECTED = {"affects_answers": False}
"""Metadata of a dataclass field that changes no answer, such as a port or a budget."""


def answer_key(specification: Any, **more: Any) -> str:
    """JSON of the fields of a dataclass that affect answers, and of `more`."""
    without = fields_without_effect(specification)
    affect = {one.name: getattr(specification, one.name) for one in fields(specification) if one.name not in without}
    return json.dumps({**affect, **more}, sort_keys=True)


def fields_without_effect(kind: Any) -> list[str]:
    """The names of a dataclass's fields that are marked `UNAFFECTED`."""
    return [one.name for one in fields(kind) if not one.metadata.get("affects_answers", True)]
