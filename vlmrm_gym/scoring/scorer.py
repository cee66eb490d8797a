"""The protocol of scorer backends: keyed states in, features out.

A backend is a file with `start(MakeEncoder, MakeRenderer, ScoringOptions) -> StartedScorers`, and its name here.
`ScoringQueue` forms batches, bounds memory and delivers features; a backend only works on batches, in order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from vlmrm_gym.rewards.model import Features, RenderSize
from vlmrm_gym.scoring.requests import StateBatch
from vlmrm_gym.scoring.state_encoder import EncoderInfo, StateEncoder
from vlmrm_gym.states import Renderer

Backend = Literal["process", "ray"]
"""Where workers run."""
MODULES: dict[Backend | Literal["local"], str] = {"local": "local", "process": "process", "ray": "ray_backend"}
"""Modules of this folder, imported on first use: Ray is optional. `num_workers=0` is "local": this process."""


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


MakeEncoder = Callable[..., StateEncoder]
"""Makes the encoder of states from `device`. Can be pickled, if necessary by cloudpickle."""
MakeRenderer = Callable[[RenderSize], Renderer]
"""Makes the renderer, which can be pickled, from a model's `render_size`."""


@dataclass(frozen=True)
class StartedScorers:
    """Scorers that are ready."""

    scorers: Sequence[Scorer]
    info: EncoderInfo
    """What is known of the reward; the largest batch is one that all scorers accept."""
    renderer: Renderer
    """Draws states as the scorers do; it has not drawn any."""
