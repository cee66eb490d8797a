"""CPU cores available to this process."""

import os


def usable_cores() -> int:
    """Number of CPU cores that this process may use: its affinity, where the platform has one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
