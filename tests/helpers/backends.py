"""Scorer backends for tests: a queue on each, and the processes that it uses."""

import contextlib
import functools
import gc
import os
import threading
import time
from pathlib import Path

import numpy as np

import vlmrm_gym
from vlmrm_gym.scoring import Request, make_scoring_queue
from vlmrm_gym.scoring.options import ScoringOptions
from vlmrm_gym.scoring.state_encoder import build_encoder
from vlmrm_gym.states import States
from vlmrm_gym.states.drawing import FrameStore


def frames_of(numbers):
    """Frames whose pixel encodes a number each, see `PixelReward`: n stored frames, uint8 (n, 1, 1, 3)."""
    numbers = np.asarray(numbers)
    pixels = np.stack([numbers % 256, numbers // 256 % 256, numbers // 65536], axis=-1)
    return States(pixels[:, None, None].astype(np.uint8))


def request_for(states):
    """A request for states with the keys 0, 1, 2, ..."""
    return Request(states, np.arange(len(states)))


def request_of(numbers):
    """A request for frames that encode numbers."""
    return request_for(frames_of(numbers))


def start(model, num_workers, *, backend="process", batch_size=8, renderer=None, **options):
    """A queue; `prompt` and others that begin with it go to the model, the rest to `ScoringOptions`."""
    prompt = str(options.pop("prompt", ""))
    return make_scoring_queue(
        functools.partial(build_encoder, functools.partial(build, model, prompt, batch_size), 1),
        lambda render_size: renderer or FrameStore(),
        ScoringOptions(
            num_workers=0 if backend == "local" else num_workers,
            backend="process" if backend == "local" else backend,
            device="cpu",
            **options,
        ),
    )


def build(model, prompt, batch_size, device):
    """Make a model of tests, as a specification does."""
    return model(prompt=prompt, batch_size=batch_size, device=device)


def check_scored(request, numbers):
    """Wait for a request, and compare its features with the numbers that its frames encode."""
    assert request.error() is None
    np.testing.assert_array_equal(request.features[:, 0, 0], np.asarray(numbers, dtype=np.float32))


def vector(bases, backend, reward="PixelReward", num_workers=2, **options):
    """A vector environment of these environments, scored by one of `reward_models`."""
    return vlmrm_gym.VLMRewardVectorEnv(
        [lambda base=base: base for base in bases],
        reward=f"reward_models:{reward}",
        num_workers=0 if backend == "local" else num_workers,
        backend="process" if backend == "local" else backend,
        autoreset_mode="SameStep",
        **options,
    )


def children(of="self"):
    """The process IDs of the children of a process, this one by default, zombies included."""
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a process or a thread that has just ended
        for task in Path(f"/proc/{of}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found |= {int(child) for child in (task / "children").read_text().split()}
    return found


def alive(pid):
    """Whether a process runs: a zombie does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def actors(of=None):
    """The process IDs of scoring actors that descend from a process, this one by default."""
    found = set()
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and b"ray::ScoringActor" in (path / "cmdline").read_bytes():
                found.add(int(path.name))
    return {pid for pid in found if descends(pid, of or os.getpid())}


earlier: set[int] = set()
"""Children before a test: Ray's own processes, multiprocessing's resource tracker."""


def workers():
    """The process IDs of all workers that a test has started, zombies included."""
    return (children() - earlier) | actors()


def threads():
    """All threads but those of Ray's own, in which Python code has run, and the one kept for torch's."""
    return {
        thread
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread) and thread.name != "vlmrm-pool"
    }


@contextlib.contextmanager
def leaving_nothing_behind():
    """Contract 8: the block leaves no process and no thread. A killed one may take a while to end."""
    before = threads()
    earlier.clear()
    earlier.update(children())
    yield
    gc.collect()
    assert wait_until(lambda: not workers(), 30), [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in workers()]
    assert wait_until(lambda: threads() <= before, 30), threads() - before


def descends(pid, ancestor):
    """Whether a process descends from another."""
    while pid > 1 and pid != ancestor:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return pid == ancestor


def wait_until(condition, seconds=20.0):
    """Wait for a condition; whether it came true."""
    until = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < until:
        time.sleep(0.05)
    return bool(met)
