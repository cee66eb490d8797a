"""The examples of docs/guides/libraries.md run, each where its library is installed (requirements/libraries.txt)."""

import importlib
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "libraries.md"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


def read_example(heading):
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return section.split("```python\n")[1].split("```")[0]


@pytest.mark.parametrize(
    ("heading", "module"),
    [("Tianshou", "tianshou"), ("RLlib", "ray.rllib.algorithms.ppo"), ("skrl", "skrl")],
)
def test_the_example_of_a_library_runs(heading, module, request, capsys):
    try:
        importlib.import_module(module)
    except ImportError as error:
        pytest.skip(f"{heading} is not installed, or lacks a package: {error}")
    if heading == "RLlib":
        request.getfixturevalue("ray_cluster")
    exec(compile(read_example(heading), str(PAGE), "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.strip()
