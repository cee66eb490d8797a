"""Time limits of workers."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from vlmrm_gym.validation import is_number


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
    """Ray only: placing the first worker. There is no limit if the cluster loses all nodes later."""

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
            raise ValueError(f"{rule}. Received {worker_timeouts!r}.")
        for name, seconds in given.items():
            if seconds is not None and (not is_number(seconds) or not 0 < seconds < math.inf):
                raise ValueError(f"{rule}. Received {seconds!r} for {name!r}.")
        return cls(**given)
