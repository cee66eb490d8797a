"""CPU cores available to this process, and torch's threads for work that is too small for several."""

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def usable_cores() -> int:
    """Number of CPU cores that this process may use: its affinity, where the platform has one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Have torch compute with one thread in this block, on the calling thread; others keep theirs.

    Threads of GNU OpenMP spin for each other at every layer, on a busy machine also for those that have no core.
    Nothing changes without GNU OpenMP, nor for matrix products once the program has called `torch.set_num_threads`.
    """
    import torch  # deferred: who only counts cores need not load it

    library = _find_openmp()
    if library is None or torch.get_num_threads() == 1:  # asking sets the calling thread's number, if it has none yet
        yield
        return
    own = library.omp_get_max_threads()
    library.omp_set_num_threads(1)  # torch.set_num_threads would set it for threads to come, too
    try:
        yield
    finally:
        library.omp_set_num_threads(own)


@functools.cache
def _find_openmp() -> ctypes.CDLL | None:
    """The GNU OpenMP that torch has loaded and brings with it; None if it has another."""
    maps = Path("/proc/self/maps")
    paths = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines()} if maps.exists() else ()
    found = [path for path in paths if "torch" in path and Path(path).name.startswith("libgomp")]
    return ctypes.CDLL(found[0]) if found else None
