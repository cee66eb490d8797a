"""The error of a program."""

from vlmrm_gym._util.terminal import quote
from vlmrm_gym.errors import InputError


class ProgramError(InputError):
    """A program failed, or tried what it must not. The message names the program and the frame."""

    frame: int | None = None
    """Number of the frame among those of the call; None: the program cannot be executed at all."""
    count = 0
    """Number of frames of the call."""

    @classmethod
    def of(cls, name: str, what: str, frame: int | None = None, count: int = 0, *, said: str = "") -> "ProgramError":
        """The error of a program: `what` it did in our words, `said` in its own, which are quoted."""
        where = " cannot be used" if frame is None else f" failed on frame {frame} of {count}"
        words = f"It says: {quote(said)}" if said else ""
        error = cls(" ".join(filter(None, [f"The program {name}{where}.", what, words])))
        error.frame, error.count = frame, count
        return error
