"""What a program's failure is told as."""

from vlmrm_gym.errors import InputError
from vlmrm_gym.terminal import quote


class ProgramError(InputError):
    """A program failed, or tried what it must not. The message names the program and the frame."""

    frame: int | None = None
    """Number of the frame among those of the call; None: the program cannot be executed at all."""
    count = 0
    """Number of frames of the call."""


def program_error(name: str, what: str, frame: int | None = None, count: int = 0, *, said: str = "") -> ProgramError:
    """The error of a program.

    Args:
        name: The program's.
        what: What it did, in our words: a sentence, or nothing.
        frame: The frame on which it failed.
        count: Number of frames of the call.
        said: The program's own words, which are quoted.
    """
    where = " cannot be used" if frame is None else f" failed on frame {frame} of {count}"
    words = f"It says: {quote(said)}" if said else ""
    error = ProgramError(" ".join(filter(None, [f"The program {name}{where}.", what, words])))
    error.frame, error.count = frame, count
    return error
