"""Executes programs, isolated or trusted, as rewards too."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rewards.model import Features, RewardModel, fixed_size
from vlmrm_gym.rewards.program.runner import LoadedProgram, describe
from vlmrm_gym.rewards.program.sandbox import is_supported
from vlmrm_gym.rewards.program.spec import Program, ProgramError

if TYPE_CHECKING:
    from vlmrm_gym.rewards.program.process import IsolatedProgram


def execute(source: str, name: str, *, isolate: bool = True) -> "IsolatedProgram | TrustedProgram":
    """Execute a program in an isolated process; or, without `isolate`, in this one, where it can do everything.

    Messages have its name. A ProgramError if it cannot be executed, or this machine cannot isolate it.
    """
    if not isolate:
        return TrustedProgram(source, name)
    if not is_supported():
        rule = "It cannot be isolated: that needs Linux on x86_64 or aarch64. Read it, and pass isolate=False to trust"
        raise ProgramError.of(name, f"{rule} it. On a command line, a file that says so also needs --trust-code.")
    from vlmrm_gym.rewards.program.process import IsolatedProgram  # what it imports is not everywhere

    return IsolatedProgram(source, name)


class TrustedProgram:
    """A program in this process, without limits."""

    subtasks: tuple[str, ...]
    """Names of its sub-tasks, in the program's words; none of a function, which needs no frames in order."""

    def __init__(self, source: str, name: str) -> None:
        self._name = name
        try:
            self._program = LoadedProgram(source, name)
        except Exception as error:
            raise ProgramError.of(name, "", words=describe(error, name)) from error
        self.subtasks = self._program.subtasks

    def run(self, frames: NDArray[Any], memory: bytes | None = None) -> tuple[NDArray[np.float64], bytes | None]:
        """The answers for successive frames of an episode, float64 (B,), finite; of a function, for any frames.

        Frames are uint8 (B, H, W, 3), or states, float64 (B, S). `memory` is what sub-tasks remember of the frames
        before; None: the episode begins. Also returns what they remember now, None for a function; another process that
        executes the same program may go on with it. A ProgramError if the program failed: what is remembered is as
        before.
        """
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
            raise ProgramError.of(self._name, "", number, len(frames), words=describe(error, self._name)) from error
        return np.array(values), remembered

    def close(self) -> None:
        """Free everything. The next call of an isolated program starts another process."""


class ProgramReward(RewardModel):
    """The reward model of a program, without the warning of `Program.build`: what verifies programs makes it itself."""

    feature_size = 1
    interpolate = False
    """What a program says of a state says nothing of the states in between."""

    def __init__(self, program: Program) -> None:
        self._execution = execute(program.files["program.py"], program.name, isolate=program.isolate)
        self.encodes = "states" if program.inputs == "states" else "view"
        self.render_size = fixed_size(program.size)
        self.subtasks = self._execution.subtasks
        """Names of the sub-tasks in their order; none for a function."""
        self.ordered = bool(self.subtasks)
        """Whether it has sub-tasks, and so scores the frames of an episode in order."""

    def encode(self, frames: NDArray[Any]) -> Features:
        """Score frames by a function: uint8 (B, H, W, 3), or states, float64 (B, S), to float32 (B, 1)."""
        return self.continue_episode(frames, None)[0]

    def continue_episode(self, frames: NDArray[Any], memory: bytes | None) -> tuple[Features, bytes | None]:
        """Score the next frames of an episode; see `TrustedProgram.run`."""
        values, memory = self._execution.run(frames, memory)
        return values.astype(np.float32)[:, None], memory

    def close(self) -> None:
        """End the process of the program."""
        self._execution.close()
