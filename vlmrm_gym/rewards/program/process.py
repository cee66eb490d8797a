"""Runs a program in a process of its own, which has nothing but the frames. `runner` is the other side."""

import math
import mmap
import os
import pickle
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rewards.program.runner import HEADER, MAX, MAX_REMEMBERED, REGION, BadProgram, check_subtasks
from vlmrm_gym.rewards.program.spec import ProgramError

SECONDS = 10.0
"""Seconds that a program may take for a frame."""
START_SECONDS = 60.0
"""Seconds that the process may take to import NumPy, and to execute the program."""

# `runner` is imported as a file, before anything of the same name in site-packages: its package imports Gymnasium.
_START = "import sys; sys.path += sys.argv[1:]; import runner; runner.main()"
_NO_ANSWER = "It wrote to the pipe in which its answers are."
_SIGNALS = {
    signal.SIGSYS: "It made a system call that is forbidden: no files, network, processes, threads or signals.",
    signal.SIGSEGV: "It read or wrote memory that it must not, such as that of the frames.",
    signal.SIGXCPU: "It used too much CPU time.",
}


class IsolatedProgram:
    """Runs a program in a process without files, network and other processes, and with limits. Linux only.

    The process is replaced after each error, so that nothing of it is left. It ends with the thread that started it at
    the latest; the next call then starts another one.
    """

    def __init__(self, source: str, name: str) -> None:
        self._source, self._name = source, name
        self.subtasks: tuple[str, ...] = ()
        self._start()

    def run(self, frames: NDArray[Any], memory: bytes | None = None) -> tuple[NDArray[np.float64], bytes | None]:
        """See `TrustedProgram.run`."""
        size, values = REGION // max(1, frames[:1].nbytes), list[float]()
        if not size:
            rule = f"A frame must have at most {REGION:,} bytes. Received {frames[:1].nbytes:,}."
            raise ProgramError.of(self._name, rule, 0, len(frames))
        try:
            for start in range(0, len(frames), size):
                memory = self._call(frames[start : start + size], memory, values)
        except _Failed as failed:
            self.close()
            number = min(len(values), len(frames) - 1)
            raise ProgramError.of(self._name, str(failed), number, len(frames), words=failed.words) from None
        except BaseException:  # Ctrl-C: the next answer would be of this call
            self.close()
            raise
        return np.array(values), memory

    def _call(self, frames: NDArray[Any], memory: bytes | None, values: list[float]) -> bytes | None:
        """Add the answers for frames that fit into the region; returns what is remembered after them."""
        if self._process.has_ended:  # not by the program, which runs during calls only
            self._start()
        self._process.send(frames, memory)
        for _ in frames:
            payload = self._process.receive(b"v", SECONDS)
            value = struct.unpack("<d", payload)[0] if len(payload) == 8 else math.nan
            if not abs(value) <= MAX:
                raise _Failed(_NO_ANSWER)
            values.append(value)
        return self._process.receive(b"m", SECONDS) if self.subtasks else None

    def _start(self) -> None:
        process = self._process = _Process(self._source, self._name)  # at once: `close` ends one that is starting, too
        try:
            self.subtasks = process.start()
            check_subtasks(self.subtasks)
        except BadProgram as error:
            process.close()
            raise ProgramError.of(self._name, f"It {error}") from None
        except _Failed as failed:
            process.close()
            raise ProgramError.of(self._name, f"{failed} {process.log_tail()}".strip(), words=failed.words) from None

    def close(self) -> None:
        """End the process. Any thread may call this; the next call starts another one."""
        self._process.close()


class _Failed(Exception):
    """A call failed; the message is ours, `words` the program's own."""

    def __init__(self, problem: str, words: str = "") -> None:
        super().__init__(problem)
        self.words = words


class _Process:
    """Owns an isolated process, its pipes and its shared memory."""

    def __init__(self, source: str, name: str) -> None:
        self._received, self._log = bytearray(), tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        writable = os.memfd_create("vlmrm_frames")
        # Memory of a descriptor that cannot write stays read-only, whatever the process asks the kernel for.
        readable = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY)
        try:
            os.truncate(writable, REGION)
            self._region = np.frombuffer(mmap.mmap(writable, REGION), dtype=np.uint8)
            specs = (util.find_spec("numpy"), util.find_spec("cv2"))
            places = dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin)
            # Without PYTHONHASHSEED the order of a set would differ from worker to worker; -I would ignore it.
            self._child = subprocess.Popen(
                [sys.executable, "-sSPc", _START, str(Path(__file__).parent), *places],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                pass_fds=(readable,),
                cwd="/",
                env={"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for the process that decides
            )
        finally:
            os.close(writable)
            os.close(readable)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._in, self._out = self._child.stdin.fileno(), self._child.stdout.fileno()
        self._thread = threading.current_thread()
        os.set_blocking(self._in, False)
        weakref.finalize(self, _end, self._child, self._log)
        self._program = pickle.dumps((name, source, readable, os.getpid()))

    def start(self) -> tuple[str, ...]:
        """Send the program; returns what it says that its sub-tasks are. Raises `_Failed`."""
        self._write(self._program, START_SECONDS)
        if obstacle := self.receive(b"b", START_SECONDS).decode():  # the program has not begun: these are our words
            raise _Failed(f"It cannot be isolated: {obstacle}. Read it, and pass isolate=False to trust it.")
        names = self.receive(b"r", START_SECONDS).decode(errors="replace")
        return tuple(names.split("\0")) if names else ()

    @property
    def has_ended(self) -> bool:
        """Whether the process is dead, or is about to be killed by the kernel: see `sandbox.die_with_parent`."""
        return self._child.poll() is not None or not self._thread.is_alive()

    def send(self, frames: NDArray[Any], memory: bytes | None) -> None:
        """Send frames that fit into the region. Raises `_Failed`."""
        self._region[: frames.nbytes].view(frames.dtype).reshape(frames.shape)[...] = frames
        used = time.clock_gettime((~self._child.pid << 3) | 2)  # clock_getcpuclockid(3)
        seconds = int(used + SECONDS * len(frames)) + 1
        _, most = resource.prlimit(self._child.pid, resource.RLIMIT_CPU)  # this user may have a limit
        seconds = seconds if most == resource.RLIM_INFINITY else min(seconds, most)
        resource.prlimit(self._child.pid, resource.RLIMIT_CPU, (seconds, most))
        self._write(pickle.dumps((frames.shape, frames.dtype.str, memory)), SECONDS)

    def _write(self, message: bytes, seconds: float) -> None:
        left = memoryview(message)
        while left:
            if not _wait(self._in, select.POLLOUT, seconds):
                raise _Failed("It does not read what it is given.")
            try:
                left = left[os.write(self._in, left) :]
            except BrokenPipeError:
                raise _Failed(self._how_it_ended()) from None

    def receive(self, expected: bytes, seconds: float) -> bytes:
        """Receive the bytes of a record of this kind. Raises `_Failed` if another one comes, or none in time."""
        kind, size = HEADER.unpack(self._take(HEADER.size, until := time.monotonic() + seconds, seconds))
        if kind not in (expected, b"e") or size > MAX_REMEMBERED:
            raise _Failed(_NO_ANSWER)
        payload = self._take(size, until, seconds)
        if kind == b"e":
            raise _Failed("", words=payload.decode(errors="replace"))
        return payload

    def _take(self, size: int, until: float, seconds: float) -> bytes:
        while len(self._received) < size:
            if not _wait(self._out, select.POLLIN, until - time.monotonic()):
                raise _Failed(f"It did not return within {seconds:g} seconds.")
            if not (read := os.read(self._out, 2**16)):
                raise _Failed(self._how_it_ended())
            self._received += read
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def _how_it_ended(self) -> str:
        try:
            status = self._child.wait(1.0)
        except subprocess.TimeoutExpired:
            return "It closed its pipes."
        if status >= 0:
            return f"It ended its process, with exit status {status}."
        return _SIGNALS.get(signal.Signals(-status), f"Its process was killed by {signal.Signals(-status).name}.")

    def log_tail(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), 2_000, max(0, size - 2_000)).decode(errors="replace").strip()

    def close(self) -> None:
        self._child.kill()
        self._child.wait()


def _wait(descriptor: int, event: int, seconds: float) -> bool:
    """Wait until a pipe can be read or written, or is closed; false if it cannot in time."""
    poll = select.poll()  # select() knows the descriptors up to 1,023 only
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, 1_000 * seconds)))


def _end(child: Any, log: Any) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout, log):
        pipe.close()
