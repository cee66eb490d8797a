"""Program: Python code as a reward (VLM-CaR). Imports no torch."""

import hashlib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.errors import InputError
from vlmrm_gym.programs.errors import ProgramError
from vlmrm_gym.programs.execution import Execution, Inputs, execute
from vlmrm_gym.rewards.base import RenderSize, Rewards, fixed_size
from vlmrm_gym.rewards.verified import is_verified
from vlmrm_gym.untrusted import MAX_PIXELS, read_text
from vlmrm_gym.validation import check_choice, check_flag, check_size, short_repr

MAX_SOURCE = 2**20
"""Bytes of a program, at most."""
_WARNED: set[str] = set()
"""Programs that this process has warned of, by their SHA-256."""


@dataclass(frozen=True, kw_only=True)
class Program:
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
    needs of Python's library. The same frame must get the same answer. A program has no features, so that stored
    rewards cannot be relabelled, and its rewards are not interpolated.

    >>> import vlmrm_gym
    >>> reward = vlmrm_gym.Program(source="def reward(frame):\n    return frame.mean() > 127")
    >>> reward.inputs
    'frames'

    Raises:
        TypeError: `path`, `source` or `fallback` is no text.
        ValueError: There is neither a path nor a source, or both; a file cannot be read, or is not the one that
            `sha256` is of; or a value is out of its range.
    """

    path: str | None = None
    """File of the program."""
    source: str | None = None
    """The program itself, in place of a file."""
    inputs: Inputs = "frames"
    """"frames", or "states": the numbers that a frame is drawn from."""
    size: tuple[int, int] | None = None
    """Height and width of the frames, in pixels; None: as large as the environment draws them."""
    fallback: str | None = None
    """File of an earlier program, a function, that answers for each frame on which this one fails. None: an error."""
    isolate: bool = True
    """False: it runs in this process, and can do what you can. Needed on other systems than Linux."""
    sha256: str | None = None
    """SHA-256 of the program, and of the fallback after it. It is filled in; files with another one are refused."""
    kind: str = field(default="program", init=False)

    def __post_init__(self) -> None:
        if (self.path is None) == (self.source is None):
            received = "neither" if self.path is None else "both"
            raise ValueError(f"`path` must be the file of a program, or `source` the program. Received {received}.")
        for name in ("path", "source", "fallback", "sha256"):
            if not isinstance(getattr(self, name), str | None):
                raise TypeError(f"`{name}` must be a text. Received {short_repr(getattr(self, name))}.")
        check_choice("inputs", self.inputs, get_args(Inputs))
        check_flag("isolate", self.isolate)
        object.__setattr__(self, "size", check_size(self.size))
        if self.size is not None and math.prod(self.size) > MAX_PIXELS:
            raise ValueError(f"`size` must have at most {MAX_PIXELS:,} pixels. Received {self.size}.")
        if self.size is not None and self.inputs == "states":
            raise ValueError(f"`size` must be None for states, which are not drawn. Received {self.size}.")
        text = self.source if self.path is None else _read("path", self.path)
        texts = (text, None if self.fallback is None else _read("fallback", self.fallback))
        digest = hashlib.sha256("\0".join(one for one in texts if one is not None).encode()).hexdigest()
        if self.sha256 not in (None, digest):
            name = "source" if self.path is None else "path"
            raise ValueError(
                f"`{name}` must be the program whose SHA-256 is {self.sha256}. Received one, with its fallback, of "
                f"{digest}: it has changed. Restore it; a run's folder has a copy, program.py."
            )
        object.__setattr__(self, "sha256", digest)
        object.__setattr__(self, "_texts", texts)  # not read again: workers get what was checked

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.path or "reward"

    @property
    def pinned(self) -> Mapping[str, Any]:
        """Fields that a run keeps, so that it is resumed with the same program."""
        return {"sha256": self.sha256}

    @property
    def files(self) -> Mapping[str, str]:
        """Texts that a run keeps a copy of, by the names of the copies."""
        text, fallback = self._texts  # pyright: ignore[reportAttributeAccessIssue]
        return {"program.py": text, **({} if fallback is None else {"fallback.py": fallback})}

    def build(self, device: str = "auto") -> "ProgramReward":
        """Execute the program in a new isolated process. Warns once if the program was not verified.

        Raises:
            ProgramError: It cannot be executed, or this machine cannot isolate it.
        """
        reward = self.execute()
        if self.sha256 not in _WARNED and not is_verified(self.path, str(self.sha256)):
            _WARNED.add(str(self.sha256))
            run, file = ("Save it in a file, and run", "FILE") if self.path is None else ("Run", self.path)
            warnings.warn(
                f"The program {self.name} was not verified: nothing says that experts complete it, and that random "
                f"behaviour does not. {run}: vlmrm-gym program verify {file} ENV",
                stacklevel=2,
            )
        return reward

    def execute(self) -> "ProgramReward":
        """As `build`, without the warning: for what verifies programs."""
        text, fallback = self.files["program.py"], self.files.get("fallback.py")
        execution = execute(text, self.name, isolate=self.isolate)
        if fallback is None:
            return ProgramReward(execution, self.inputs, self.size)
        other = execute(fallback, str(self.fallback), isolate=self.isolate)
        if other.subtasks:
            other.close()
            raise ValueError(f"`fallback` must define a function reward(frame). Received {short_repr(self.fallback)}.")
        return ProgramReward(execution, self.inputs, self.size, other)


def _read(parameter: str, path: str) -> str:
    try:
        return read_text(path, MAX_SOURCE)
    except InputError as error:
        raise ValueError(f"`{parameter}` must be the file of a program: {error}") from error


class ProgramReward:
    """The reward model of a program.

    Args:
        execution: The program.
        inputs: What it sees.
        size: Height and width of its frames; None: the environment's own.
        fallback: A function that answers where it fails.
    """

    batch_size = microbatch_size = 64
    multi_view = False
    interpolate = False
    """What a program says of a state says nothing of the states in between."""

    def __init__(
        self,
        execution: Execution,
        inputs: Inputs,
        size: tuple[int, int] | None = None,
        fallback: Execution | None = None,
    ) -> None:
        self._execution, self._fallback, self.inputs, self._size = execution, fallback, inputs, size
        self._warned = False
        self.subtasks = execution.subtasks
        """Names of the sub-tasks in their order; none for a function."""
        self.ordered = bool(execution.subtasks)
        """Whether it has sub-tasks, and so scores the frames of an episode in order."""

    @property
    def render_size(self) -> RenderSize:
        """The size at which its frames are drawn."""
        return fixed_size(self._size)

    def __call__(self, frames: NDArray[Any]) -> Rewards:
        """Score frames by a function: uint8 (B, H, W, 3), or states, float64 (B, S), to float32 (B,).

        Raises:
            ProgramError: The program failed.
        """
        assert not self.ordered
        return self.continue_episode(frames, None)[0]

    def continue_episode(self, frames: NDArray[Any], memory: bytes | None) -> tuple[Rewards, bytes | None]:
        """Score the next frames of an episode; see `Execution.run`."""
        values, memory = self._run(frames, memory)
        return values.astype(np.float32), memory

    def close(self) -> None:
        """End the program's process. The next call starts another one."""
        for execution in (self._execution, self._fallback):
            if execution is not None:
                execution.close()

    def _run(self, frames: NDArray[Any], memory: bytes | None) -> tuple[NDArray[np.float64], bytes | None]:
        values = list[NDArray[np.float64]]()
        while len(frames):
            try:
                made, memory = self._execution.run(frames, memory)
                return np.concatenate([*values, made]), memory
            except ProgramError as error:
                if self._fallback is None or (failed := error.frame) is None:
                    raise
                if not self._warned:
                    self._warned = True
                    warnings.warn(f"{error} Its fallback answers, here and where it fails again.", stacklevel=2)
            if failed:  # sub-tasks do not see the frame on which they failed
                made, memory = self._run(frames[:failed], memory)
                values.append(made)
            values.append(self._fallback.run(frames[failed : failed + 1])[0])
            frames = frames[failed + 1 :]
        return np.concatenate(values), memory
