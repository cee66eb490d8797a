"""What a program's failure is told as."""

from vlmrm_gym.errors import InputError
from vlmrm_gym.terminal import printable

MAX_TEXT = 2_400
"""Characters of a text that is told: it may be the program's own."""


class ProgramError(InputError):
    """A program failed, or tried what it must not. The message names the program and the frame."""

    frame: int | None = None
    """Number of the frame among those of the call; None: the program cannot be executed at all."""
    count = 0
    """Number of frames of the call."""


def program_error(name: str, what: str, frame: int | None = None, count: int = 0) -> ProgramError:
    """The error of a program.

    Args:
        name: The program's.
        what: What it did, a sentence. It may be the program's own text.
        frame: The frame on which it failed.
        count: Number of frames of the call.
    """
    where = "" if frame is None else f" failed on frame {frame} of {count}"
    error = ProgramError(f"The program {name}{where or ' cannot be used'}. {printable(what[:MAX_TEXT])}")
    error.frame, error.count = frame, count
    return error
