"""`make test-oldest` tests the lower bounds that users are promised."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]


def lower_bounds(lines):
    """The lowest version that each requirement allows, by the name of the package."""
    bounds = {}
    for line in lines:
        requirement = Requirement(line)
        (bound,) = requirement.specifier
        assert bound.operator in (">=", "==")
        bounds[canonicalize_name(requirement.name)] = Version(bound.version)
    return bounds


def test_the_oldest_environment_has_the_lower_bounds():
    """But for torch: another would be a download of gigabytes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = lower_bounds([*project["dependencies"], *project["optional-dependencies"]["sb3"]])
    del promised["torch"], promised["torchvision"]
    lines = (ROOT / "requirements" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    tested = lower_bounds(line for line in lines if not line.startswith("#"))
    assert promised.items() <= tested.items()
