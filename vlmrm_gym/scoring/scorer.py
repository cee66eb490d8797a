"""The protocol of scorer backends, keyed states in, features out, and their devices.

A backend is a file with `start(MakeEncoder, MakeRenderer, ScoringOptions) -> StartedScorers`, and its name here.
`ScoringQueue` forms batches, bounds memory and delivers features; a backend only works on batches, in order.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from vlmrm_gym.rewards.model import Features, RenderSize
from vlmrm_gym.scoring.options import Backend, ScoringOptions
from vlmrm_gym.scoring.requests import StateBatch
from vlmrm_gym.scoring.state_encoder import EncoderInfo, StateEncoder
from vlmrm_gym.states import Renderer

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


def choose_devices(options: ScoringOptions) -> list[str]:
    """The devices to score on, each at most once."""
    from vlmrm_gym.rewards.devices import resolve_device  # deferred: a worker need not import torch for this file

    devices, device, num_workers = options.devices, options.device, options.num_workers
    if devices is None:
        first = resolve_device(device)
        if device == "auto" and first.type == "cuda" and num_workers:
            import torch

            return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        return [str(first)]
    if device != "auto":
        raise ValueError(
            f"`device` and `devices` cannot both be passed. Received {device!r} and {devices!r}. Leave one out."
        )
    chosen = list(dict.fromkeys(str(resolve_device(one, f"devices[{i}]")) for i, one in enumerate(devices)))
    if len(chosen) > max(1, num_workers):
        raise ValueError(
            f"`devices` must be at most one for each worker. Received {len(chosen)} devices and "
            f"num_workers={num_workers}. Pass num_workers={len(chosen)}, or fewer devices."
        )
    return chosen


def thread_env(threads: int) -> dict[str, str]:
    """Environment variables that limit a worker to some threads."""
    return {"OMP_NUM_THREADS": str(threads), "LP_NUM_THREADS": str(threads if threads > 1 else 0)}


def worker_env(device: str, threads: int) -> dict[str, str]:
    """Environment variables of a worker process on this machine; existing ones are kept."""
    unset = {name: value for name, value in thread_env(threads).items() if name not in os.environ}
    if not device.startswith("cuda"):
        return unset
    # A worker sees one GPU, which torch uses, and MuJoCo renders on it through EGL.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    number = int(device.partition(":")[2])
    return {**unset, "CUDA_VISIBLE_DEVICES": visible[number] if visible != [""] else str(number)}
