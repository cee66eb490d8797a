"""`Program`, Python code as a reward (VLM-CaR). Imports no torch, and nothing that executes programs."""

import hashlib
import importlib
import math
import symtable
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vlmrm_gym._util.errors import InputError, quote
from vlmrm_gym._util.untrusted import MAX_PIXELS, read_json, read_text
from vlmrm_gym._util.validation import check_flag, check_size
from vlmrm_gym.rewards.clip import checked, of_type, one_of, optional
from vlmrm_gym.rewards.model import RewardModel
from vlmrm_gym.rewards.spec import RewardSpec

Inputs = Literal["frames", "states"]
"""What a program sees of a state: its frame, or its numbers."""
MAX_SOURCE = 2**20
"""Bytes of a program, at most."""
_text = optional(of_type(str, "a text"))
_WARNED: set[str] = set()
"""Programs that this process has warned of, by their SHA-256."""


@dataclass(frozen=True, kw_only=True)
class Program(RewardSpec):
    r"""A reward that a Python program computes, written by a person or by a VLM (VLM-CaR, arXiv 2402.04764).

    The program defines one of two things. A function of a frame:

        def reward(frame):          # uint8 (H, W, 3), read-only; or a state, float64 (S,)
            return frame[..., 0].mean() / 255     # any finite number, or a bool

    Or the sub-tasks of a task, classes in their order, each with `reset()` and `__call__(frame)`, which returns a bool
    or a number from 0 to 1. True and 1 complete the sub-task for the rest of the episode. The reward of a step is

        (completed + value) / number,

    where `completed` of the `number` sub-tasks have been completed so far in the episode, and `value` is what the next
    one returns for this frame, 0 if there is none. The next one sees a frame only once those before it are completed,
    the frame that completed them first; before its first frame an instance is made, and `reset`. Classes that others
    derive from, or whose names begin with an underscore, are no sub-tasks. What a sub-task remembers must be in its
    instance, which is pickled.

    The program runs in processes of its own, without files, network, other processes or the environment's variables;
    a frame takes at most 10 seconds, and the process 1 GiB. It imports NumPy, OpenCV if it is installed, and what it
    needs of Python's library. The same frame must get the same answer. Its answers are the features, of width 1,
    and its rewards are not interpolated.

    >>> import vlmrm_gym
    >>> reward = vlmrm_gym.Program(source="def reward(frame):\n    return frame.mean() > 127")
    >>> reward.inputs
    'frames'

    Raises:
        TypeError: `path`, `source` or `sha256` is no text.
        ValueError: There is neither a path nor a source, or both; a file cannot be read, or is not the one that
            `sha256` is of; or a value is out of its range.
    """

    path: str | None = field(default=None, metadata={"check": _text})
    """File of the program."""
    source: str | None = field(default=None, metadata={"check": _text})
    """The program itself, in place of a file."""
    inputs: Inputs = field(default="frames", metadata={"check": one_of(Inputs)})
    """"frames", or "states": the numbers that a frame is drawn from."""
    size: tuple[int, int] | None = field(default=None, metadata={"check": check_size})
    """Height and width of the frames, in pixels; None: as large as the environment draws them."""
    isolate: bool = field(default=True, metadata={"check": check_flag})
    """False: it runs in this process, and can do what you can. Needed on other systems than Linux."""
    sha256: str | None = field(default=None, metadata={"check": _text})
    """SHA-256 of the program. It is filled in; files with another one are refused."""
    kind: str = field(default="program", init=False)

    def __post_init__(self) -> None:
        if (self.path is None) == (self.source is None):
            received = "neither" if self.path is None else "both"
            raise ValueError(f"`path` must be the file of a program, or `source` the program. Received {received}.")
        checked(self)
        if self.size is not None and math.prod(self.size) > MAX_PIXELS:
            raise ValueError(f"`size` must have at most {MAX_PIXELS:,} pixels. Received {self.size}.")
        text = self.source if self.path is None else read_text(self.path, MAX_SOURCE)
        digest = hashlib.sha256(str(text).encode()).hexdigest()
        if self.sha256 not in (None, digest):
            name = "source" if self.path is None else "path"
            raise ValueError(
                f"`{name}` must be the program whose SHA-256 is {self.sha256}. Received one of {digest}: it has "
                "changed. Restore it; a run's folder has a copy, program.py."
            )
        object.__setattr__(self, "sha256", digest)
        object.__setattr__(self, "files", {"program.py": text})  # not read again: workers get what was checked

    @property
    def name(self) -> str:
        """The name in messages."""
        return self.path or "reward"

    @property
    def in_workers(self) -> bool:
        """Whether it defines a function: sub-tasks see frames in order, in the process of the environments."""
        try:
            reward = symtable.symtable(self.files["program.py"], self.name, "exec").lookup("reward")
            return reward.is_assigned() or reward.is_imported()
        except SyntaxError:  # `build` says so
            return True
        except KeyError:
            return False

    def build(self, device: str = "auto") -> RewardModel:
        """Execute the program in a new isolated process. Warns once if the program was not verified.

        Raises:
            ProgramError: It cannot be executed, or this machine cannot isolate it.
        """
        # By its name, as the file that executes imports this one.
        reward = importlib.import_module("vlmrm_gym.rewards.program.execution").ProgramReward(self)
        if self.sha256 not in _WARNED and not self._is_verified():
            _WARNED.add(str(self.sha256))
            run = "Save it in a file, and run" if self.path is None else "Run"
            warnings.warn(
                f"The program {self.name} was not verified: nothing says that experts complete it, and that random "
                f"behaviour does not. {run}: vlmrm-gym program verify {self.path or 'FILE'} ENV",
                stacklevel=2,
            )
        return reward

    def _is_verified(self) -> bool:
        with suppress(InputError):
            values = None if self.path is None else read_json(record_file(self.path))
            return isinstance(values, dict) and values.get("sha256") == self.sha256
        return False


def record_file(path: str | Path) -> Path:
    """The file in which `vlmrm-gym program verify` notes acceptance: kneel.verification.json beside kneel.py."""
    return Path(path).with_suffix(".verification.json")


class ProgramError(InputError):
    """A program failed, or tried what it must not. The message names the program and the frame."""

    frame: int | None = None
    """Number of the frame among those of the call; None: the program cannot be executed at all."""
    count = 0
    """Number of frames of the call."""

    @classmethod
    def of(cls, name: str, fault: str, frame: int | None = None, count: int = 0, *, words: str = "") -> "ProgramError":
        """Make the error of a program: the `fault` in our words, `words` in its own, which are quoted."""
        where = " cannot be used" if frame is None else f" failed on frame {frame} of {count}"
        quoted = f"It says: {quote(words)}" if words else ""
        error = cls(" ".join(filter(None, [f"The program {name}{where}.", fault, quoted])))
        error.frame, error.count = frame, count
        return error
