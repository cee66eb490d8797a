"""Imports point one way."""

import ast
import re
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from setuptools import find_namespace_packages

ROOT = Path(__file__).parents[2]
LEAVES = {"_util", "infos"}
"""What every room may import."""

ALLOWED = {
    "_util": set(),
    "infos": set(),
    "tasks": LEAVES,
    "vlmrm_gym": LEAVES | {"tasks"},  # __init__.py; what it offers lazily is imported when it is used
    "rewards": LEAVES,
    "states": LEAVES,
    "data": LEAVES | {"states", "rewards"},
    "scoring": LEAVES | {"states", "rewards", "data"},
    "envs": LEAVES | {"tasks", "states", "rewards", "data", "scoring"},
    "learning": LEAVES | {"tasks", "states", "rewards", "data"},
    "sb3": LEAVES | {"tasks", "states", "rewards", "data", "scoring", "envs", "learning"},
    "torchrl": LEAVES | {"states", "rewards", "data", "scoring", "envs"},
    "tools": LEAVES | {"tasks", "states", "rewards", "data", "scoring", "envs", "learning", "sb3"},
    "__main__": {"tools"},
    "bundled_model": LEAVES | {"tasks", "states", "rewards", "data", "tools"},
    "painting": {"states"},
}
"""By room, bottom up: the rooms whose files its files may import. A room is a file or a folder of `vlmrm_gym`."""

BOUNDS = {"lines of a file": 320, "lines": 29_400, "files": 186, "entries at the top": 16, "floors": 8}
"""What the library has, at most."""

Graph = dict[str, set[str]]
"""Modules by their dotted names, and the modules that each imports."""


def read_imports(root: Path, *packages: str) -> Graph:
    """What the files of packages import of each other, also inside of functions and for type checkers alone.

    What the `__init__.py` of a package names for type checkers is what it offers lazily: it does not count.
    """
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in packages
        for path in (root / package).rglob("*.py")
    }
    graph: Graph = {}
    for module, path in files.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        named = imported_names(ast.parse(path.read_text()), package, path.name == "__init__.py")
        graph[module] = {found for name in named if (found := module_of(name, files))}
    return graph


def imported_names(tree: ast.AST, package: str, lazy: bool) -> Iterator[str]:
    """Dotted names of all that is imported; where `lazy`, without what only type checkers see."""
    if isinstance(tree, ast.Import):
        yield from (alias.name for alias in tree.names)
    elif isinstance(tree, ast.ImportFrom):
        parents = package.split(".")[: len(package.split(".")) - tree.level + 1] if tree.level else []
        module = ".".join([*parents, *([tree.module] if tree.module else [])])
        yield from (f"{module}.{alias.name}" for alias in tree.names)
    elif lazy and isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING":
        for node in tree.orelse:
            yield from imported_names(node, package, lazy)
    else:
        for node in ast.iter_child_nodes(tree):
            yield from imported_names(node, package, lazy)


def module_of(name: str, files: dict[str, Path]) -> str | None:
    """The module that a name is, or is in."""
    while name and name not in files:
        name = name.rpartition(".")[0]
    return name or None


def find_cycle(graph: Graph) -> list[str]:
    """Modules that import each other in a circle; empty if there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def find_forbidden(graph: Graph, allowed: dict[str, set[str]]) -> list[str]:
    """The imports from one room to another that the table does not allow."""
    return [
        f"{module} -> {imported}"
        for module, all_imported in sorted(graph.items())
        for imported in sorted(all_imported)
        if room_of(imported) not in allowed[room_of(module)] | {room_of(module)}
    ]


def room_of(module: str) -> str:
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == "vlmrm_gym" and rest else package


def test_rooms_import_only_what_they_may_and_no_files_each_other_in_a_circle():
    """The table points one way: rooms stand in it bottom up, and import only those above them."""
    rooms = list(ALLOWED)
    for number, room in enumerate(rooms):
        assert ALLOWED[room] <= set(rooms[:number])
    graph = read_imports(ROOT, "vlmrm_gym", "bundled_model", "painting")
    assert find_cycle(graph) == []
    assert {room_of(module) for module in graph} == ALLOWED.keys()
    assert find_forbidden(graph, ALLOWED) == []


def count_floors(graph: Graph) -> int:
    """Rooms that stand on top of each other, at most: each imports the one below it."""
    below: Graph = {}
    for module, imported in graph.items():
        below.setdefault(room_of(module), set()).update(map(room_of, imported))
    floors: dict[str, int] = {}
    for room in TopologicalSorter({room: rooms - {room} for room, rooms in below.items()}).static_order():
        floors[room] = 1 + max((floors[one] for one in below.get(room, set()) - {room}), default=0)
    return max(floors.values())


def test_the_house_stays_within_its_bounds():
    """Who raises a bound says in CHANGELOG.md what for."""
    files = {path: len(path.read_text().splitlines()) for path in (ROOT / "vlmrm_gym").rglob("*.py")}
    entries = {path.relative_to(ROOT / "vlmrm_gym").parts[0] for path in files}
    library = {name: imported for name, imported in read_imports(ROOT, "vlmrm_gym").items() if "." in name}
    found = {
        "lines of a file": max(files.values()),
        "lines": sum(files.values()),
        "files": len(files),
        "entries at the top": len(entries),
        "floors": count_floors(library),
    }
    assert {name: number for name, number in found.items() if number > BOUNDS[name]} == {}


def plant(root, **files):
    """A package `vlmrm_gym` of two rooms, in which `low` knows nothing of `high`; and other files."""
    files = {"low__a": "", "high__b": "from vlmrm_gym.low.a import x", **files}
    for name, text in files.items():
        path = root / "vlmrm_gym" / f"{re.sub(r'(?<=[a-z])__(?=[a-z])', '/', name)}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    graph = read_imports(root, "vlmrm_gym")
    return find_cycle(graph), find_forbidden(graph, {"low": set(), "high": {"low"}})


def test_planted_upward_imports_and_cycles_are_found(tmp_path):
    """Also inside of a room. What a package offers lazily may point anywhere."""
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vlmrm_gym.high import b"
    for planted in ("import vlmrm_gym.high.b", "from ..high import b", "def f():\n    from ..high import b", for_types):
        cycle, forbidden = plant(tmp_path, low__a=planted)
        assert set(cycle) == {"vlmrm_gym.low.a", "vlmrm_gym.high.b"}
        assert forbidden == ["vlmrm_gym.low.a -> vlmrm_gym.high.b"]
    inside = {"high__c": "def f():\n    from . import d", "high__d": "from vlmrm_gym.high.c import f"}
    cycle, forbidden = plant(tmp_path, **inside, **{"low/__init__": for_types})
    assert (set(cycle), forbidden) == ({"vlmrm_gym.high.c", "vlmrm_gym.high.d"}, [])


def test_what_makes_the_bundled_model_and_the_pictures_is_not_in_the_wheel():
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = find_namespace_packages(str(ROOT), **setup["packages"]["find"])
    assert "vlmrm_gym.rewards.tiny" in packages
    assert {name.split(".")[0] for name in packages} == {"vlmrm_gym"}
    assert (ROOT / "bundled_model").is_dir()
    assert (ROOT / "painting").is_dir()
