"""Software versions, and the machine."""

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

_PACKAGES = ("gymnasium", "mujoco", "numpy", "open_clip_torch", "sb3_contrib", "stable_baselines3", "torch")


def read_versions() -> dict[str, Any]:
    """Read the current time, the machine, and the versions of Python and the main dependencies."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": read_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "packages": {package: importlib.metadata.version(package) for package in _PACKAGES},
    }


def read_commit() -> str | None:
    """Read the commit of the source tree that this package is imported from; None outside a Git repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
