"""Processes of benchmarks: those of other checkouts, and descendants, read from `/proc` (none but on Linux)."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def start_in_checkout(tree: Path, code: str, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
    """Start Python code that imports the package of a checkout, and the modules of these benchmarks."""
    path = os.pathsep.join((str(tree.resolve()), str(Path(__file__).parent.resolve())))
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, cwd=tree, env={**os.environ, "PYTHONPATH": path}, **options)


def descendants(root: int | None = None) -> list[int]:
    """Process IDs of all descendants of a process (None: this one)."""
    parents = {pid: int(fields[1]) for pid, fields in _stats().items()}
    found, above = [], {os.getpid() if root is None else root}
    while above := {pid for pid, parent in parents.items() if parent in above}:
        found += sorted(above)
    return found


def memory(name: str, pid: int | None = None) -> float:
    """A figure of a process's status (None: of this one), such as VmRSS or its peak, VmHWM, in MB."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid or 'self'}/status").read_text())
    if found is None:
        raise ProcessLookupError(f"The process {pid} has ended.")
    return int(found[1]) * 1024 / 1e6


def cpu_seconds(root: int | None = None) -> float:
    """User and system CPU time of all living descendants."""
    stats = _stats()
    return sum(int(stats[pid][11]) + int(stats[pid][12]) for pid in descendants(root) if pid in stats) / _TICKS


def _stats() -> dict[int, list[str]]:
    """Fields of `/proc/PID/stat` from the third (state) on, by process ID."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
        except OSError:  # the process has just ended
            continue
    return found
