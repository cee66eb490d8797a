"""Whether a process that claimed something still lives."""

import os
import socket
import time
from pathlib import Path

_FOREIGN_CLAIM = 3600.0
"""Seconds for which a claim of a process of another host holds: whether that is alive cannot be seen."""


def this_process() -> str:
    """A name of this process that no other had or will have: host, number, and when it started."""
    return f"{socket.gethostname()} {os.getpid()} {_start_time(os.getpid())}"


def is_alive(claimed_by: str, claimed_at: float) -> bool:
    """Whether the process of that name may still be at work, `claimed_at` in seconds since 1970."""
    host, process, start = claimed_by.rsplit(" ", 2)
    if host != socket.gethostname():
        return time.time() - claimed_at < _FOREIGN_CLAIM
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is another user's
    return _start_time(int(process)) == start


def _start_time(process: int) -> str:
    """When a process was started, in the kernel's ticks, as numbers of processes are used again; "?" if not known."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "?"
