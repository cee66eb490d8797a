"""A scoring worker as its parent sees it: sent states, asked for rewards, and replaced when it dies."""

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from vlmrm_gym.rendering import Renderer
from vlmrm_gym.scoring.scorer import RewardModel, Rewards
from vlmrm_gym.scoring.worker import Ready

ATTEMPTS = 3
"""Deaths in a row over the same batch that are one too many."""
LAST_WORDS = 4_000
"""Bytes of a dead worker's log that an error shows."""

# Not multiprocessing's spawn: that imports the user's script again, which then needs a guard, and starts a process that
# tracks resources.
_START = "import sys; sys.path[:] = sys.argv[1:]; from vlmrm_gym.scoring.worker import main; main()"


class WorkerDied(RuntimeError):
    """A scoring worker died again and again over the same states; the message ends with its last words."""


class WorkerProcess:
    """A `Scorer` in a process of its own. It is started afresh, so CUDA and OpenGL work in it whatever was done before.

    Args:
        make_reward: Makes its reward model; has to be importable there, and what is bound to it picklable.
        environment: Environment variables to set in it.
    """

    def __init__(self, make_reward: Callable[[], RewardModel], environment: dict[str, str]) -> None:
        self._make_reward = pickle.dumps(make_reward)  # fails before there is a process
        self._environment = {**os.environ, **environment}
        self._renderer = b""
        self._unanswered: deque[NDArray[Any]] = deque()
        self._written = 0
        """Batches that the process has been sent, of those that are unanswered."""
        self._careful = False
        """Whether one batch at a time is sent, because the last one was deadly."""
        self._closed, self._replacing = False, threading.RLock()  # a garbage collection may close what it replaces
        self._process = _Process(self._environment)
        self._process.write(self._make_reward)

    def wait_until_ready(self) -> Ready:
        """Wait until the model is loaded.

        Raises:
            WorkerDied: It died.
            Exception: What loading raised, with the worker's traceback as a note.
        """
        return self._process.read("ready")

    def set_renderer(self, renderer: Renderer) -> None:
        """Say what draws the states that will be sent."""
        self._renderer = pickle.dumps(renderer)
        self._process.write(self._renderer)

    def send(self, states: NDArray[Any]) -> None:
        """Hand over a batch."""
        self._unanswered.append(states)
        if not (self._careful and self._written):
            self._write_all()

    def receive(self) -> Rewards:
        """Wait for the rewards of the first batch that is not answered yet. A worker that dies over it is replaced.

        Raises:
            WorkerDied: Three died in a row.
            Exception: What scoring raised, with the worker's traceback as a note.
        """
        deaths = 0
        while True:
            try:
                rewards = self._process.read("rewards")
            except WorkerDied:
                deaths += 1
                if given_up := deaths == ATTEMPTS or self._closed:
                    self._unanswered.popleft()
                self._replace()
                if given_up:
                    raise
            except BaseException:
                self._answered()
                raise
            else:
                self._answered()
                return rewards

    def abort(self) -> None:
        """Kill the process; `receive` raises at once."""
        with self._replacing:
            self._closed = True
            self._process.kill()

    def close(self) -> None:
        """Kill the process, and wait until it is gone."""
        self.abort()
        self._process.bury()

    def _answered(self) -> None:
        self._unanswered.popleft()
        self._written -= 1
        self._careful = False
        self._write_all()

    def _write_all(self) -> None:
        while self._written < len(self._unanswered):
            self._write_next()

    def _write_next(self) -> None:
        self._process.write(pickle.dumps(self._unanswered[self._written]))
        self._written += 1

    def _replace(self) -> None:
        """Start another process, with the first batch only: the next death is to be blamed on nothing else."""
        with self._replacing:
            if self._closed:
                return
            self._process.bury()
            self._process = _Process(self._environment)
            if self._closed:  # by a garbage collection
                self._process.kill()
        self._process.write(self._make_reward)
        self._process.write(self._renderer)
        self._careful, self._written = True, 0
        if self._unanswered:
            self._write_next()


class _Process:
    """One life of a worker."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `bury`)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout

    def write(self, message: bytes) -> None:
        """Send a pickle. That the process is dead, reading will tell."""
        with contextlib.suppress(BrokenPipeError):
            self._requests.write(message)
            self._requests.flush()

    def read(self, kind: str) -> Any:
        """Wait for the next message of a kind, and raise errors that come instead."""
        while True:
            try:
                came, payload = pickle.load(self._replies)
            except (EOFError, pickle.UnpicklingError):  # nothing, or the beginning of a message
                raise WorkerDied(self._obituary()) from None
            except BaseException:  # a message that cannot be understood here: where the next one begins is not known
                self._process.kill()
                raise
            if came == "error":
                raise payload
            if came == kind:
                return payload

    def kill(self) -> None:
        self._process.kill()

    def bury(self) -> None:
        """Wait for the end of a process that is dying, and let go of what belonged to it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._requests, self._replies, self._log):
            with contextlib.suppress(BrokenPipeError):  # what it never read is still in the buffer
                stream.close()

    def _obituary(self) -> str:
        try:
            status = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:  # it has closed its output, but lives
            self._process.kill()
            status = self._process.wait()
        size = os.fstat(self._log.fileno()).st_size
        words = os.pread(self._log.fileno(), LAST_WORDS, max(0, size - LAST_WORDS)).decode(errors="replace").strip()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        return f"A scoring worker {how}. Its last words: {words or '(none)'}"
