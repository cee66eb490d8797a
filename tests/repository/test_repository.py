"""What a clone shows: versions that agree, targets, a short README, a map of the parts."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import vlmrm_gym

ROOT = Path(__file__).parents[2]


def test_changelog_and_citation_have_the_packages_version():
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    assert newest.split()[0] == vlmrm_gym.__version__
    assert set(re.findall(r"^### (.*)$", newest, re.M)) - {"Added", "Changed", "Fixed", "Removed"} == set()
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == vlmrm_gym.__version__


def test_make_alone_prints_the_targets():
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # `make test` runs this
    done = subprocess.run(["make"], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M)
    assert [line.split()[0] for line in done.stdout.splitlines()] == targets


def test_the_workflow_runs_ci_on_every_python_of_the_package():
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["run"]
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert job["strategy"]["matrix"]["python"] == named
    assert job["steps"][-1]["run"] == ".ci/run"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_contributing_names_every_part_and_the_readme_is_short():
    """Every file and folder of the package stands in the first column of the table."""
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)/?`", row)}
    parts = {path.stem for path in (ROOT / "vlmrm_gym").iterdir() if path.is_dir() or path.suffix == ".py"}
    assert named == {part for part in parts if not part.startswith("__")}
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def lower_bounds(lines):
    """The lowest version that each requirement allows, by the name of the package."""
    bounds = {}
    for line in lines:
        requirement = Requirement(line)
        (bound,) = requirement.specifier
        assert bound.operator in (">=", "==")
        bounds[canonicalize_name(requirement.name)] = Version(bound.version)
    return bounds


def test_the_oldest_environment_has_the_lower_bounds_that_users_are_promised():
    """For `make test-oldest`, but for torch: another would be a download of gigabytes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = lower_bounds([*project["dependencies"], *project["optional-dependencies"]["sb3"]])
    del promised["torch"], promised["torchvision"]
    lines = (ROOT / "requirements" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    tested = lower_bounds(line for line in lines if not line.startswith("#"))
    assert promised.items() <= tested.items()
