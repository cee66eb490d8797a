"""The machine: cores, memory, threads, and versions of what is installed."""

import ctypes
import functools
import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")


def usable_cores() -> int:
    """Count the CPU cores that this process may use: its affinity, where the platform has one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parts(work: Callable[["torch.Tensor"], Result], batch: "torch.Tensor") -> list[Result]:
    """Apply a function to equal parts of a batch, as many as torch has threads: each part by one thread that is alone.

    Threads of GNU OpenMP, of which torch uses several for one operation, spin for each other at every layer, on a busy
    machine also for those that have no core. Without GNU OpenMP, or with one thread, the batch is one part. How it is
    cut, and so the last digits of what is computed, does not depend on how busy the machine is.
    """
    import torch  # deferred: who only counts cores need not load it

    threads = torch.get_num_threads()
    library = _find_openmp()
    if threads == 1 or library is None:
        return [work(batch)]
    first, *others = torch.tensor_split(batch, min(threads, len(batch)))
    waiting = [_pool(threads).submit(_alone, library, work, part) for part in others]
    return [_alone(library, work, first), *(one.result() for one in waiting)]


def _alone(library: ctypes.CDLL, work: Callable[["torch.Tensor"], Result], part: "torch.Tensor") -> Result:
    """Let torch compute with one thread, on the calling thread only.

    Matrix products keep the number that the program has passed to `torch.set_num_threads`, if it has.
    """
    import torch

    threads = torch.get_num_threads()  # asking sets the calling thread's number, if it has none yet
    library.omp_set_num_threads(1)  # torch.set_num_threads would set it for threads to come, too
    try:
        return work(part)
    finally:
        library.omp_set_num_threads(threads)


@functools.cache
def _find_openmp() -> ctypes.CDLL | None:
    """Find the GNU OpenMP that torch brings and has loaded; None if it has another."""
    libraries = [path for path in mapped_files() if "torch" in path and Path(path).name.startswith("libgomp")]
    return ctypes.CDLL(libraries[0]) if libraries else None


def mapped_files() -> set[str]:
    """Find the files that are mapped into this process, such as libraries; none where the platform does not tell."""
    maps = Path("/proc/self/maps")
    return {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines()} if maps.exists() else set()


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="vlmrm-part")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its parent's threads


MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Bytes that are free, or can be freed, within the limit of the container; None if the platform does not tell."""
    sizes = []
    with suppress(OSError, KeyError, ValueError):
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        sizes.append(int(lines["MemAvailable"].split()[0]) * 1024)
    with suppress(OSError, ValueError):  # no container, or its limit is "max"
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        sizes.append(max(0, limit - used + int(counts.get("inactive_file", 0))))
    if not sizes and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):  # macOS
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(sizes, default=None)


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
