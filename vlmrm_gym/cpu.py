"""CPU cores available to this process, and how torch's threads share them with other processes."""

import functools
import os
import threading


def usable_cores() -> int:
    """Number of CPU cores that this process may use: its affinity, where the platform has one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def share_cores() -> None:
    """Have torch's threads in this process sleep while they wait for each other, however many there are.

    Those of GNU OpenMP spin for about 3 ms first, and on a busy machine for a thread that has no core. They hardly spin
    once the pools of a process have more threads than there are cores, so one more pool sleeps in it from now on.
    `OMP_WAIT_POLICY` could say so as well, but only before torch is loaded.
    """
    import torch  # deferred: who only counts cores need not load it

    own, made = torch.get_num_threads(), threading.Event()
    if own > 1:
        threading.Thread(target=_keep_pool, args=(own, made), name="vlmrm-pool", daemon=True).start()
        made.wait()


def _keep_pool(own: int, made: threading.Event) -> None:
    import torch

    torch.get_num_threads()  # before a thread has asked, setting it has no effect
    torch.set_num_threads(usable_cores() + 1)
    torch.ones(2**20)  # makes the pool: enough for all threads to take part
    torch.set_num_threads(own)  # which threads to come will have
    made.set()
    threading.Event().wait()  # a pool ends with its thread
