"""Executes a program: in a process of its own, which has nothing else. See `process`, the other side.

Imports nothing of this package but the file `sandbox` beside it. It reads, pickled, the program's name and source, the
descriptor of the shared memory in which frames are, and the process that started it; then for each call the shape and
dtype of the frames, and what is remembered of those before them. It writes records: a letter, a length, and so many
bytes. First, before the program's code runs, "b": it begins, or why the process cannot be isolated. Then, in words of
the program: "r": ready, with the names of sub-tasks. "v": the answer for a frame, a float64. "m": what sub-tasks
remember after the last frame. "e": the text of an error.
"""

import importlib
import io
import math
import mmap
import os
import pickle
import struct
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

MODULES = (
    *("abc", "array", "bisect", "cmath", "collections", "collections.abc", "colorsys", "contextlib", "copy", "ctypes"),
    *("dataclasses", "decimal", "enum", "fractions", "functools", "heapq", "itertools", "json", "math", "numbers"),
    *("operator", "os", "random", "re", "signal", "statistics", "string", "struct", "sys", "textwrap", "threading"),
    *("time", "types", "typing", "warnings", "numpy.fft", "numpy.lib.stride_tricks", "numpy.linalg", "numpy.ma"),
    *("numpy.polynomial", "numpy.random"),
)
"""What a program may import besides NumPy and OpenCV: loaded before it is, because then no file can be opened."""
MEMORY = 2**30
"""Bytes of address space that the process may have, with those of Python and NumPy, about 200 MiB."""
REGION = 2**26
"""Bytes of shared memory for the frames of a call."""
MAX_OUTPUT = 2**16
"""Characters that a program may print in one call. They are thrown away."""
MAX_REMEMBERED = 2**24
"""Bytes that a program may remember of an episode."""
MAX_SUBTASKS = 100
"""Sub-tasks of a program, and characters of the name of one."""
MAX = float(np.finfo(np.float32).max)
"""The highest answer."""
HEADER = struct.Struct("<cI")
_PREFIX, _NUMBERS = "vlmrm_program_", count()
"""The modules of programs, of which a process may execute several, also the same one twice, if it trusts them."""


class BadProgram(Exception):
    """A program, or its answer, is wrong. The message continues a sentence about it."""


def check_subtasks(names: Sequence[str]) -> None:
    """Raise BadProgram unless sub-tasks can be listed. Who started the process checks them, too."""
    if len(names) > MAX_SUBTASKS or any(len(name) > MAX_SUBTASKS or not name.isidentifier() for name in names):
        rule = f"must define at most {MAX_SUBTASKS} sub-tasks, whose names are identifiers of as many characters."
        raise BadProgram(rule)


class LoadedProgram:
    """A program that has been executed: a function `reward`, or classes of sub-tasks, else a BadProgram."""

    def __init__(self, source: str, name: str) -> None:
        # A module of its own, because instances are pickled, and dataclasses look for theirs.
        self._module = module = types.ModuleType(f"{_PREFIX}{next(_NUMBERS)}")
        sys.modules[module.__name__] = module
        exec(compile(source, name, "exec", dont_inherit=True), vars(module))
        defined = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
        defined = [one for one in dict.fromkeys(defined) if {"reset", "__call__"} <= {*chain(*map(vars, one.__mro__))}]
        bases = {base for one in defined for base in one.__mro__[1:]}
        self._tasks: Sequence[Any] = [one for one in defined if one not in bases and not one.__name__.startswith("_")]
        self._function: Any = vars(module).get("reward")
        rule = "must define a function reward(frame), or classes with reset() and __call__(frame)"
        if self._function is not None and self._tasks:
            raise BadProgram(f"{rule}, not both. Call helpers another name, with an underscore before it.")
        if not callable(self._function) and not self._tasks:
            raise BadProgram(f"{rule}. It defines neither.")
        check_subtasks(self.subtasks)

    @property
    def subtasks(self) -> tuple[str, ...]:
        """Names of its sub-tasks in their order; none for a function."""
        return tuple(getattr(one, "__name__", "") for one in self._tasks)

    def answers(self, frames: NDArray[Any], memory: bytes | None) -> Iterator[float | bytes]:
        """Yield the answers for successive frames; of sub-tasks then what is remembered, as bytes.

        `memory` is what is remembered of the frames before; None: an episode begins. Raises a BadProgram for an answer
        that is no number, or not the same for the same frame, and whatever the program raises.
        """
        if not self._tasks:
            self._check_same(self._ask, self._function, frames[0])
            for frame in frames:
                yield self._ask(self._function, frame)
            return
        if memory is None:
            self._check_same(lambda: self._step(self._begin(), frames[0])[0])
        state = self._begin() if memory is None else _Unpickler(memory, self._module.__name__).load()
        for frame in frames:
            value, state = self._step(state, frame)
            yield value
        remembered = pickle.dumps(state)
        if len(remembered) > MAX_REMEMBERED:
            rule = f"must remember at most {MAX_REMEMBERED:,} bytes of an episode. Received {len(remembered):,}."
            raise BadProgram(rule)
        yield remembered

    def _begin(self, completed: int = 0) -> tuple[int, Any]:
        """Return the number of completed sub-tasks, and a new instance of the next one."""
        if completed == len(self._tasks):
            return completed, None
        instance = self._tasks[completed]()
        instance.reset()
        return completed, instance

    def _step(self, state: tuple[int, Any], frame: NDArray[Any]) -> tuple[float, tuple[int, Any]]:
        """The answer for the next frame, and the state after it."""
        value = 0.0
        while state[1] is not None:
            value = self._ask(state[1], frame)
            if not 0 <= value <= 1:
                raise BadProgram(f"must return a bool, or a number from 0 to 1, for a sub-task. Received {value}.")
            if value < 1:
                break
            state, value = self._begin(state[0] + 1), 0.0
        return (state[0] + value) / len(self._tasks), state

    def _ask(self, function: Callable[[Any], Any], frame: NDArray[Any]) -> float:
        value = function(frame)
        if isinstance(value, np.generic):
            value = value.item()  # in float16 the highest number would be infinite
        if not isinstance(value, int | float | np.floating):
            received = f"{type(value).__name__}{f' of shape {value.shape}' if isinstance(value, np.ndarray) else ''}"
            raise BadProgram(f"must return a number or a bool for a frame. Received {received}.")
        if not abs(value) <= MAX:
            raise BadProgram(f"must return a finite number for a frame, in float32. Received {value}.")
        return float(value)

    def _check_same(self, ask: Callable[..., float], *arguments: Any) -> None:
        first, second = ask(*arguments), ask(*arguments)
        if first != second:
            raise BadProgram(
                f"must return the same for the same frame. Received {first}, then {second}. It must not depend on the "
                "time, on chance or on earlier calls; what a sub-task remembers must be in its instance."
            )


class _Unpickler(pickle.Unpickler):
    """Reads what this program remembered, here or in another process, where its module may have another number."""

    def __init__(self, memory: bytes, own: str) -> None:
        super().__init__(io.BytesIO(memory))
        self._own = own

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        return super().find_class(self._own if module_name.startswith(_PREFIX) else module_name, global_name)


def describe(error: BaseException, name: str) -> str:
    """Describe an error, with the program's line."""
    if isinstance(error, BadProgram):
        return f"It {error}"
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == name]
    line = lines[-1] if lines else None
    try:
        text = str(error)[:2_000]
    except Exception:  # its own method
        text = ""
    if isinstance(error, SyntaxError) and error.filename == name:
        line, text = error.lineno, error.msg
    if isinstance(error, ImportError):
        text += ". A program may import NumPy, OpenCV if it is installed, and much of Python's library"
    where = "" if line is None else f"Line {line}: "
    return f"{where}{type(error).__name__}: {text}".rstrip(".: ") + "."


class _Output(io.TextIOBase):
    """Discards what a program prints, up to a limit."""

    written = 0

    def write(self, text: str) -> int:
        self.written += len(text)
        if self.written > MAX_OUTPUT:
            raise BadProgram(f"must print at most {MAX_OUTPUT:,} characters in a call.")
        return len(text)


def main() -> NoReturn:
    """Serve the process that started this one, until it ends or closes the pipe."""
    sandbox: Any = importlib.import_module("sandbox")
    requests, output = sys.stdin.buffer, _Output()
    name, source, descriptor, parent = pickle.load(requests)
    sandbox.die_with_parent(parent)
    region = mmap.mmap(descriptor, REGION, prot=mmap.PROT_READ)
    os.close(descriptor)
    for module in (*MODULES, *(["cv2"] if "cv2" in source else [])):
        try:
            imported: Any = importlib.import_module(module)
        except ImportError:  # the program's own import says so
            continue
        if module == "cv2":
            imported.setNumThreads(0)
    sys.stdin, sys.stdout, sys.stderr = None, output, output
    sys.path[:], sys.meta_path[:] = [], sys.meta_path[:2]  # built-in and frozen modules: no file can be opened
    try:
        sandbox.enter(MEMORY)
    except (OSError, ValueError) as error:
        _send(b"b", str(error).encode())
        os._exit(0)
    _send(b"b", b"")
    try:
        program = LoadedProgram(source, name)
    except BaseException as error:  # SystemExit too
        _send_error(error, name)
        os._exit(0)
    _send(b"r", "\0".join(program.subtasks).encode())
    while True:
        try:
            shape, dtype, memory = pickle.load(requests)
        except EOFError:
            os._exit(0)
        frames = np.frombuffer(region, dtype, math.prod(shape)).reshape(shape)
        try:
            for answer in program.answers(frames, memory):
                output.written = 0
                is_memory = isinstance(answer, bytes)
                _send(b"m" if is_memory else b"v", answer if is_memory else struct.pack("<d", answer))
        except BaseException as error:
            _send_error(error, name)


def _send(kind: bytes, payload: bytes) -> None:
    message = memoryview(HEADER.pack(kind, len(payload)) + payload)
    while message:
        message = message[os.write(1, message) :]


def _send_error(error: BaseException, name: str) -> None:
    _send(b"e", describe(error, name).encode(errors="replace"))
