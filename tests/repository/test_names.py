"""A name means one class, and the first sentence of a docstring names what it is about."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "vlmrm_gym"
VAGUE = re.compile(r"(What|Those|As of|One's own)\b")
"""Beginnings that name nothing."""


def definitions() -> Iterator[tuple[str, ast.AST]]:
    """All modules, classes and functions of the package, each with its place."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 1)}", node


def is_vague(node: ast.AST) -> bool:
    """Whether a docstring's first sentence says neither what a thing is nor what it does."""
    sentence = ast.get_docstring(node) or ""  # pyright: ignore[reportArgumentType]
    is_property = any("property" in ast.unparse(one) for one in getattr(node, "decorator_list", []))
    return bool(VAGUE.match(sentence)) or (sentence.startswith("Whether ") and not is_property)


def test_no_two_classes_have_the_same_name():
    places = defaultdict[str, list[str]](list)
    for place, node in definitions():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            places[node.name].append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_first_sentences_name_what_they_are_about():
    assert [place for place, node in definitions() if is_vague(node)] == []


def test_the_rule_of_sentences_tells_good_from_bad():
    code = 'def size():\n    "{}"'
    bad = ("What the server said.", "Those that fail.", "Whether it is one.", "As of its own.", "One's own number.")
    good = ("Count the pixels.", "The height in pixels.", "Tell whether it is one.", "Whatever fits is kept.")
    assert [is_vague(ast.parse(code.format(text)).body[0]) for text in (*bad, *good)] == [True] * 5 + [False] * 4
    assert not is_vague(ast.parse('@property\ndef ready():\n    "Whether it is ready."').body[0])
