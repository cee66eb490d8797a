"""The "process" backend: worker processes on this machine, connected by pipes."""

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import IO, Any

import cloudpickle

from vlmrm_gym.cpu import usable_cores
from vlmrm_gym.scoring.devices import choose_devices, worker_env
from vlmrm_gym.scoring.restarts import LOG_TAIL_BYTES, RestartingScorer, WorkerDied, finish_start
from vlmrm_gym.scoring.scorer import Batch, ScorerOptions, StartedScorers
from vlmrm_gym.scoring.timeouts import Timeouts
from vlmrm_gym.scoring.watchdog import Watchdog
from vlmrm_gym.scoring.worker import Answer, WorkerInfo

TICK = 0.2
"""Seconds between checks that a process is alive and makes progress."""
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


def start(options: ScorerOptions) -> StartedScorers:
    """Start the workers, and wait until their models are loaded."""
    devices = choose_devices(options.num_workers, options.devices, options.device)
    threads = max(1, usable_cores() // options.num_workers)
    with ExitStack() as undo:
        scorers = []
        for number in range(options.num_workers):
            device = devices[number % len(devices)]
            # Pickled first, so that an error starts no process.
            make_reward = cloudpickle.dumps(partial(options.make_reward, device=device.partition(":")[0]))
            environment = {**os.environ, **worker_env(device, threads)}
            scorer = RestartingScorer(partial(ProcessWorker, make_reward, environment, options.timeouts))
            undo.callback(scorer.close)
            scorers.append(scorer)
        infos = [scorer.wait_until_ready() for scorer in scorers]
        started = finish_start(scorers, infos, options.make_renderer)
        undo.pop_all()
    return started


class ProcessWorker:
    """A `Worker` in a newly started (not forked) process, so CUDA and OpenGL work in it.

    Threads read and write the pipes, so waiting can time out, on Windows too. They end when the process is killed, even
    if it was stopped.

    Args:
        make_reward: A pickled function that makes the reward model.
        environment: Environment variables of the process.
        timeouts: Time without progress after which the process is killed.
    """

    def __init__(self, make_reward: bytes, environment: dict[str, str], timeouts: Timeouts) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `reap`)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(os.getpid()), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )
        self._watchdog = Watchdog(timeouts)
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        pipes = (_read, self._process.stdout, self._inbox), (_write, self._process.stdin, self._outbox)
        self._threads = [
            threading.Thread(target=target, args=arguments, name=f"vlmrm{target.__name__}", daemon=True)
            for target, *arguments in pipes
        ]
        for thread in self._threads:
            thread.start()
        self._outbox.put(make_reward)

    @property
    def max_in_flight(self) -> int:
        """2: one batch is drawn while the one before it is encoded."""
        return 2

    def wait_until_available(self, timeout: float | None) -> bool:
        """Return True at once."""
        return True

    def wait_until_ready(self) -> WorkerInfo:
        """Wait for the model."""
        return self._read("ready")

    def set_renderer(self, renderer: bytes) -> None:
        """Send the pickled renderer."""
        self._outbox.put(renderer)

    def send(self, batch: Batch) -> None:
        """Send a batch."""
        self._watchdog.num_sent += 1
        self._outbox.put(pickle.dumps((batch.keys, batch.states, batch.output)))

    def receive(self) -> Answer:
        """Wait for the next answer."""
        return self._read("answer")

    def _read(self, kind: str) -> Any:
        """Wait for the next message of a kind; raise any error received instead."""
        while True:
            begun = time.monotonic()
            received, payload = self._next_message()
            # A longer interval means that this process was stopped as well, or the machine slept.
            self._watch(min(time.monotonic() - begun, 2 * TICK), received, payload)
            if received == "end":
                raise WorkerDied(f"A scoring worker {self._how_it_ended()}.")
            if received == "unreadable":  # the stream cannot be resynchronised
                self._process.kill()
            if received in ("error", "unreadable"):
                raise payload
            if received == kind:
                return payload

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def reap(self) -> None:
        """Kill the process, wait for it to end, and free its pipes and log."""
        self._process.kill()
        try:
            self._process.wait(REAP_TIMEOUT)
        except subprocess.TimeoutExpired:  # do not leave a zombie
            threading.Thread(target=self._process.wait, name="vlmrm_reap", daemon=True).start()
        self._outbox.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():  # garbage collection on that thread may have called this
                thread.join(REAP_TIMEOUT)
        self._log.close()

    def _next_message(self) -> tuple[str, Any]:
        has_ended = self._process.poll() is not None  # earlier replies arrive within a tick
        try:
            return self._inbox.get(timeout=TICK)
        except queue.Empty:
            return "end" if has_ended else "silence", None

    def _watch(self, seconds: float, received: str, payload: Any) -> None:
        """Account for a message and the elapsed time; kill the process if it made no progress for too long."""
        watchdog = self._watchdog
        watchdog.loaded |= received == "ready"
        watchdog.num_drawn += received == "drawn"
        watchdog.num_answered += received in ("answer", "error")
        wrong = watchdog.advance(seconds, (payload,) if received == "progress" else ())
        if wrong and received == "silence":
            self._process.kill()
            raise WorkerDied(wrong)

    def _how_it_ended(self) -> str:
        try:
            status = self._process.wait(REAP_TIMEOUT)
        except subprocess.TimeoutExpired:  # its output is closed, but it is alive
            self._process.kill()
            status = self._process.wait()
        return f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"

    def log_tail(self) -> str:
        """The end of its standard error."""
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES))
        return tail.decode(errors="replace").strip()


def _read(replies: IO[bytes], inbox: "queue.SimpleQueue[tuple[str, Any]]") -> None:
    """Queue a process's replies, then ("end", None)."""
    with replies:
        while True:
            try:
                inbox.put(pickle.load(replies))
            except (EOFError, pickle.UnpicklingError):  # end of file, or a truncated message
                return inbox.put(("end", None))
            except BaseException as error:
                return inbox.put(("unreadable", error))


def _write(requests: IO[bytes], outbox: "queue.SimpleQueue[bytes | None]") -> None:
    """Write messages to a process until one is None or the process is dead."""
    with contextlib.suppress(OSError), requests:
        while (message := outbox.get()) is not None:
            requests.write(message)
            requests.flush()
