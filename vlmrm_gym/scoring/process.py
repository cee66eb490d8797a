"""The "process" backend: worker processes on this machine, connected by pipes."""

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
from functools import partial
from typing import IO, Any

import cloudpickle

from vlmrm_gym._util.errors import close_on_error
from vlmrm_gym._util.system import usable_cores
from vlmrm_gym.scoring.options import ScoringOptions
from vlmrm_gym.scoring.remote import LOG_TAIL_BYTES, Channel, RemoteScorer, finish_start
from vlmrm_gym.scoring.scorer import MakeEncoder, MakeRenderer, StartedScorers, choose_devices, worker_env

REAP_TIMEOUT = 1.0
"""Seconds to wait for a killed process and its pipes; one blocked on a file system can take much longer to end."""

# Not multiprocessing's spawn: it re-imports the user's script, which then needs a guard, and starts a resource tracker.
# The parent's ID is an argument, because getppid() returns another one if the parent dies early.
_START = """
import sys
parent, sys.path[:] = int(sys.argv[1]), sys.argv[2:]
from vlmrm_gym.scoring.worker import main
main(parent)
"""


def start(make_encoder: MakeEncoder, make_renderer: MakeRenderer, options: ScoringOptions) -> StartedScorers:
    """Start the workers, and wait until their models are loaded."""
    devices = choose_devices(options)
    threads = max(1, usable_cores() // options.num_workers)
    scorers = list[RemoteScorer]()
    with close_on_error(scorers):
        for number in range(options.num_workers):
            device = devices[number % len(devices)]
            # Pickled first, so that an error starts no process.
            encoder = cloudpickle.dumps(partial(make_encoder, device=device.partition(":")[0]))
            environment = {**os.environ, **worker_env(device, threads)}
            scorers.append(RemoteScorer(partial(ProcessChannel, environment), encoder, options.timeouts))
        return finish_start(scorers, scorers, make_renderer)


class ProcessChannel(Channel):
    """A `Channel` to a newly started (not forked) process, so CUDA and OpenGL work in it.

    Threads read and write the pipes, so waiting can time out, on Windows too. They end when the process is killed, even
    if it was stopped.
    """

    name = "A scoring worker"

    def __init__(self, environment: dict[str, str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(os.getpid()), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )
        self._inbox: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        pipes = (self._read, self._process.stdout), (self._write, self._process.stdin)
        self._threads = [
            threading.Thread(target=target, args=(pipe,), name=f"vlmrm{target.__name__}", daemon=True)
            for target, pipe in pipes
        ]
        for thread in self._threads:
            thread.start()

    def put(self, message: bytes) -> None:
        """Queue a message for the process."""
        self._outbox.put(message)

    def get(self, timeout: float) -> tuple[str, Any] | None:
        """Receive the next message, or how the process ended."""
        has_ended = self._process.poll() is not None  # earlier messages arrive within `timeout`
        try:
            message = self._inbox.get(timeout=timeout)
        except queue.Empty:
            if not has_ended:
                return None
            message = None
        return message or ("end", self._how_it_ended())

    def _how_it_ended(self) -> str:
        try:
            status = self._process.wait(REAP_TIMEOUT)
        except subprocess.TimeoutExpired:  # its output is closed, but it is alive
            self._process.kill()
            status = self._process.wait()
        return f"was killed by signal {-status}." if status < 0 else f"ended with exit status {status}."

    def log_tail(self) -> str:
        """Read the end of its standard error."""
        self._log.seek(max(0, os.fstat(self._log.fileno()).st_size - LOG_TAIL_BYTES))
        return self._log.read().decode(errors="replace").strip()  # to the end, where the process writes on

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def close(self) -> None:
        """Wait for the process to end, and free its pipes and log."""
        try:
            self._process.wait(REAP_TIMEOUT)
        except subprocess.TimeoutExpired:  # do not leave a zombie
            threading.Thread(target=self._process.wait, name="vlmrm_reap", daemon=True).start()
        self._outbox.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():  # garbage collection on that thread may have called this
                thread.join(REAP_TIMEOUT)
        self._log.close()

    def _read(self, replies: IO[bytes]) -> None:
        """Queue the process's messages, then None."""
        with replies:
            while True:
                try:
                    self._inbox.put(pickle.load(replies))
                except (EOFError, pickle.UnpicklingError):  # end of file, or a truncated message
                    return self._inbox.put(None)
                except BaseException as error:  # the stream cannot be resynchronised
                    self._process.kill()
                    return self._inbox.put(("error", error))

    def _write(self, requests: IO[bytes]) -> None:
        """Write messages to the process until one is None or the process is dead."""
        with contextlib.suppress(OSError), requests:
            while (message := self._outbox.get()) is not None:
                requests.write(message)
                requests.flush()
