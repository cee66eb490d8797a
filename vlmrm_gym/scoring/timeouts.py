"""Time limits of workers, and how long each stage of a worker has made no progress."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vlmrm_gym.validation import is_number, short_repr


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Seconds without progress after which a worker is killed; None: no limit.

    Limits apply to small steps of work, so they need not grow with the batch size.
    """

    load: float | None = 3600.0
    """Loading the model, including a download of its weights."""
    draw: float | None = 300.0
    """Rendering 64 frames; the first ones include creating an OpenGL context."""
    encode: float | None = 900.0
    """Encoding one microbatch: a frame for a large model on a CPU, a batch on a GPU."""
    schedule: float | None = 600.0
    """Ray only: the time without any worker, until the first one has a place, or after a cluster has lost all."""

    @classmethod
    def of(cls, worker_timeouts: Mapping[str, float | None] | None) -> "Timeouts":
        """From the keyword argument: a mapping of some of the fields; the others keep their defaults.

        Raises:
            ValueError: Not a mapping, an unknown name, or not a positive number.
        """
        names = list(asdict(cls()))
        rule = f"`worker_timeouts` must be a mapping of {', '.join(map(repr, names))} to seconds above 0 or None"
        given = {} if worker_timeouts is None else worker_timeouts
        if not isinstance(given, Mapping) or not set(given) <= set(names):
            raise ValueError(f"{rule}. Received {short_repr(worker_timeouts)}.")
        for name, seconds in given.items():
            if seconds is not None and (not is_number(seconds) or not 0 < seconds < math.inf):
                raise ValueError(f"{rule}. Received {short_repr(seconds)} for {short_repr(name)}.")
        return cls(**given)


_DOING = {"load": "loading the model", "draw": "drawing frames", "encode": "encoding frames"}


class Watchdog:
    """Counts the seconds without progress of each stage of a worker that has work.

    Args:
        timeouts: The limits.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._limits = {stage: getattr(timeouts, stage) or math.inf for stage in _DOING}
        self._silent = dict.fromkeys(_DOING, 0.0)
        self._loaded = False
        self.num_sent = 0
        """Batches that the worker has been sent."""
        self._num_drawn = self._num_answered = 0

    def advance(self, seconds: float, kind: str = "", payload: Any = None) -> str | None:
        """Account for time, and for the message of the worker that ended it.

        Args:
            seconds: The time.
            kind: Of the message, see `worker`; "" if none has arrived.
            payload: Of the message: the stage that one of "progress" names.

        Returns:
            What the worker has done for too long; None if all is well.
        """
        self._loaded |= kind == "ready"
        self._num_drawn += kind == "drawn"
        self._num_answered += kind in ("answer", "error")
        working = {
            "load": not self._loaded,
            "draw": self._loaded and self.num_sent > self._num_drawn,
            "encode": self._num_drawn > self._num_answered,
        }
        wrong = None
        progressing = payload if kind == "progress" else None
        for own, is_working in working.items():
            self._silent[own] = self._silent[own] + seconds if is_working and own != progressing else 0.0
            if not kind and self._silent[own] > self._limits[own]:
                wrong = (
                    f"did not respond for {self._limits[own]:g} seconds ({_DOING[own]}). If it needs longer, "
                    f'pass worker_timeouts={{"{own}": seconds}}.'
                )
        return wrong
