"""The files of examples/libraries run, each where its library is installed (requirements/libraries.txt)."""

import importlib
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "libraries"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("tianshou_collector", "tianshou"),
        ("rllib_ppo", "ray.rllib.algorithms.ppo"),
        ("skrl_environments", "skrl"),
    ],
)
def test_the_example_of_a_library_runs(file, module, request, capsys):
    try:
        importlib.import_module(module)
    except ImportError as error:
        pytest.skip(f"{module} is not installed, or lacks a package: {error}")
    if file == "rllib_ppo":
        request.getfixturevalue("ray_cluster")
    runpy.run_path(str(FOLDER / f"{file}.py"))
    assert capsys.readouterr().out.strip()
