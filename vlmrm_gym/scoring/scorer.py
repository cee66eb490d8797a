"""The protocol of scorer backends: keyed states in, features out.

A backend is a file with a function `start(ScorerOptions) -> StartedScorers`, and a line in `backends.py`.
`ScoringQueue` forms batches, bounds memory and delivers features; a backend only works on batches, in order.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from vlmrm_gym._util.validation import is_number, short_repr
from vlmrm_gym.rewards.model import Features
from vlmrm_gym.scoring.requests import StateBatch
from vlmrm_gym.scoring.state_encoder import EncoderInfo, StateEncoder
from vlmrm_gym.states import Renderer


class WorkerDied(RuntimeError):
    """A worker died, or did not respond. Users see the third one that did over the same states, with its log."""


class Scorer(Protocol):
    """Encodes batches in the order in which they are sent. One thread calls all methods but `abort`."""

    @property
    def max_in_flight(self) -> int:
        """Maximum number of unanswered batches; at least 2, so that rendering and encoding overlap."""
        ...

    def wait_until_available(self) -> bool:
        """Block until batches can be sent; False if `abort` was called meanwhile."""
        ...

    def send(self, batch: StateBatch) -> None:
        """Submit a batch. Never raises: `receive` reports errors."""
        ...

    def receive(self) -> Features:
        """Wait for the features of the oldest unanswered batch, float32 (B, V, D).

        Raises:
            WorkerDied: The worker is lost, and is being replaced. Send all unanswered batches again, here after
                `wait_until_available`, or elsewhere.
            Exception: Raised by scoring. The batch counts as answered.
        """
        ...

    def abort(self) -> None:
        """Make a blocked call return soon. Any thread may call this, before `close`."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


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
        """From the keyword argument: a mapping of some of the fields; the others keep their defaults."""
        names = list(asdict(cls()))
        rule = f"`worker_timeouts` must be a mapping of {', '.join(map(repr, names))} to seconds above 0 or None"
        given = {} if worker_timeouts is None else worker_timeouts
        if not isinstance(given, Mapping) or not set(given) <= set(names):
            raise ValueError(f"{rule}. Received {short_repr(worker_timeouts)}.")
        for name, seconds in given.items():
            if seconds is not None and (not is_number(seconds) or not 0 < seconds < math.inf):
                raise ValueError(f"{rule}. Received {short_repr(seconds)} for {short_repr(name)}.")
        return cls(**given)


MakeEncoder = Callable[..., StateEncoder]
MakeRenderer = Callable[[Callable[[int, int], tuple[int, int]]], Renderer]


@dataclass(frozen=True, kw_only=True)
class ScorerOptions:
    """Options of a backend."""

    make_encoder: MakeEncoder
    """Makes the encoder of states from `device`. Can be pickled, if necessary by cloudpickle."""
    make_renderer: MakeRenderer
    """Makes the renderer, which can be pickled, from a model's `render_size`."""
    num_workers: int
    devices: Sequence[str] | None
    device: str
    timeouts: Timeouts = field(default_factory=Timeouts)
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of one backend, such as `ray_options`."""


@dataclass(frozen=True)
class StartedScorers:
    """Scorers that are ready."""

    scorers: Sequence[Scorer]
    info: EncoderInfo
    """What is known of the reward; the largest batch is one that all scorers accept."""
    renderer: Renderer
    """Draws states as the scorers do; it has not drawn any."""
