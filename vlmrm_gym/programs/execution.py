r"""Executes a program, isolated or trusted. What verifies programs runs them with this, too.

>>> import numpy as np
>>> from vlmrm_gym.programs.execution import execute
>>> program = execute("def reward(frame):\n    return frame.mean() / 255", "brightness.py")
>>> values, _ = program.run(np.full((2, 4, 4, 3), 255, dtype=np.uint8))
>>> values.tolist()
[1.0, 1.0]
>>> program.close()
"""

from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.programs.errors import program_error
from vlmrm_gym.programs.runner import LoadedProgram, describe
from vlmrm_gym.programs.sandbox import is_supported

Inputs = Literal["frames", "states"]
"""What a program sees of a state: its frame, or its numbers."""


class Execution(Protocol):
    """A program that can be run."""

    subtasks: tuple[str, ...]
    """Names of its sub-tasks in their order, as the program says them; it then needs the frames of an episode in order.
    None for a function."""

    def run(self, frames: NDArray[Any], memory: bytes | None = None) -> tuple[NDArray[np.float64], bytes | None]:
        """The answers for successive frames of an episode; of a function, for any frames.

        Args:
            frames: uint8 (B, H, W, 3), or states, float64 (B, S).
            memory: What sub-tasks remember of the frames before; None: the episode begins. It can be passed on to
                another process that executes the same program, and says nothing outside of one.

        Returns:
            float64 (B,), finite; and what sub-tasks remember now, None for a function.

        Raises:
            ProgramError: The program failed. What is remembered is as before.
        """
        ...

    def close(self) -> None:
        """Free everything."""
        ...


def execute(source: str, name: str, *, isolate: bool = True) -> Execution:
    """Execute a program.

    Args:
        source: Python, see `vlmrm_gym.Program`.
        name: Of the program, for messages.
        isolate: Whether it runs in an isolated process; otherwise in this one, where it can do everything.

    Raises:
        ProgramError: It cannot be executed, or this machine cannot isolate it.
    """
    if not isolate:
        return TrustedProgram(source, name)
    if not is_supported():
        rule = "It cannot be isolated: that needs Linux on x86_64 or aarch64. Read it, and pass isolate=False to trust"
        raise program_error(name, f"{rule} it. On a command line, a file that says so also needs --trust-code.")
    from vlmrm_gym.programs.process import IsolatedProgram  # what it imports is not everywhere

    return IsolatedProgram(source, name)


class TrustedProgram:
    """A program in this process, without limits. See `execute`."""

    def __init__(self, source: str, name: str) -> None:
        self._name = name
        try:
            self._program = LoadedProgram(source, name)
        except Exception as error:
            raise program_error(name, "", said=describe(error, name)) from error
        self.subtasks = self._program.subtasks

    def run(self, frames: NDArray[Any], memory: bytes | None = None) -> tuple[NDArray[np.float64], bytes | None]:
        """See `Execution.run`."""
        values, remembered, frames = list[float](), None, frames.view()
        frames.flags.writeable = False
        try:
            for answer in self._program.answers(frames, memory):
                if isinstance(answer, bytes):
                    remembered = answer
                else:
                    values.append(answer)
        except Exception as error:
            number = min(len(values), len(frames) - 1)
            raise program_error(self._name, "", number, len(frames), said=describe(error, self._name)) from error
        return np.array(values), remembered

    def close(self) -> None:
        """Nothing is held."""
