"""The protocol of scorer backends: keyed states in, rewards, features or frames out.

A backend is a file with a function `start(ScorerOptions) -> StartedScorers`, and a line in `backends.py`.
`ScoringQueue` forms batches, bounds memory and delivers what was made; a backend only works on batches, in order.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym._util.validation import is_number, short_repr
from vlmrm_gym.rewards.state_reward import Memory, RewardInfo, StateReward
from vlmrm_gym.states import Renderer, States

Keys = NDArray[np.int64]


@dataclass(frozen=True)
class Drawing:
    """Frames that are wanted in place of rewards."""

    size: tuple[int, int] | None = None
    """(height, width) in pixels; None: the size at which the model looks at them."""
    camera: Any = None
    """The cameras that draw them, see `cameras.make_cameras`; None: those of the reward."""


Output = Literal["rewards", "features", "ordered"] | Drawing
"""What is made of states. "ordered": rewards, each of which depends on the states of the episode before it."""
Values = NDArray[Any]
"""What was made of B states: rewards, float32 (B,); features, float32 (B, V, D); frames, uint8 (B, V, H, W, 3); or
ordered rewards, `ORDERED` (B,)."""
ORDERED = np.dtype([("reward", np.float32), ("memory", object)])
"""A reward, and what is remembered after the last state of a run of states; None after the others."""
Run = tuple[int, Memory]
"""A number of successive states of an episode, and what an ordered reward remembers of those before them."""

MAX_STEPS = 2**40
"""Steps of an environment that have distinct keys."""


def transition_keys(env_index: ArrayLike, step_index: ArrayLike) -> Keys:
    """One key per transition, int64 (N,): the environment's index in its vector, and `vlm_step_index`."""
    return np.asarray(env_index, dtype=np.int64) * MAX_STEPS + np.asarray(step_index, dtype=np.int64)


@dataclass(eq=False)
class Batch:
    """States to score in one call."""

    keys: Keys
    """int64 (B,): identify the transitions that led to the states, see `transition_keys`."""
    states: States
    """B states."""
    output: Output = "rewards"
    """What is made of them."""
    runs: Sequence[Run] = ()
    """Of ordered rewards: the runs that the states are of, one after the other."""

    def __len__(self) -> int:
        return len(self.states)


class WorkerDied(RuntimeError):
    """A worker died, or did not respond. Users see the third one that did over the same states, with its log."""


class Scorer(Protocol):
    """Scores batches in the order in which they are sent. One thread calls all methods but `abort`."""

    @property
    def max_in_flight(self) -> int:
        """Maximum number of unanswered batches; at least 2, so that rendering and encoding overlap."""
        ...

    def wait_until_available(self) -> bool:
        """Block until batches can be sent; False if `abort` was called meanwhile."""
        ...

    def send(self, batch: Batch) -> None:
        """Submit a batch. Never raises: `receive` reports errors."""
        ...

    def receive(self) -> Values:
        """Wait for what was made of the oldest unanswered batch.

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


MakeReward = Callable[..., StateReward]
MakeRenderer = Callable[[Callable[[int, int], tuple[int, int]]], Renderer]


@dataclass(frozen=True, kw_only=True)
class ScorerOptions:
    """Options of a backend."""

    make_reward: MakeReward
    """Makes the reward of states from `device`. Can be pickled, if necessary by cloudpickle."""
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
    batch_size: int
    """The largest batch that all scorers accept."""
    info: RewardInfo
    """What the reward is of."""
