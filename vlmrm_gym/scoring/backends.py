"""Scorer backends by name. To add one, write a file with `start(ScorerOptions) -> StartedScorers` and a line here."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vlmrm_gym.scoring.queue import ScoringQueue
from vlmrm_gym.scoring.scorer import MakeRenderer, MakeReward, ScorerOptions
from vlmrm_gym.scoring.timeouts import Timeouts
from vlmrm_gym.validation import check_choice, check_integer, short_repr

LOCAL = "local"
"""The backend of `num_workers=0`: this process."""

BACKENDS = {
    LOCAL: "vlmrm_gym.scoring.local",
    "process": "vlmrm_gym.scoring.process",
    "ray": "vlmrm_gym.scoring.ray_backend",
}
"""Modules, imported on first use: Ray is optional."""


def make_scoring_queue(
    make_reward: MakeReward,
    make_renderer: MakeRenderer,
    *,
    num_workers: int = 0,
    devices: Sequence[str] | None = None,
    device: str = "cpu",
    max_pending_bytes: int = sys.maxsize,
    timeouts: Timeouts | None = None,
    in_workers: bool = True,
    backend: str = "process",
    ray_options: Mapping[str, Any] | None = None,
) -> ScoringQueue:
    """Load models in this process or in workers, and wait until they are ready.

    The defaults are those of a model that the caller has loaded, and of states that all are in memory.

    Args:
        make_reward: Makes the reward of states from `device`; see `build_reward`.
        make_renderer: Makes the renderer from a model's `render_size`.
        num_workers: Number of workers; 0 scores in this process, for any backend.
        in_workers: False scores in this process, whatever the number of workers.
        devices: Devices of worker processes, assigned in turn. None: `device`.
        device: "auto" uses all GPUs, or else the CPU.
        max_pending_bytes: See `ScoringQueue`.
        timeouts: Time without progress after which a worker is replaced; None: the defaults.
        backend: "process" or "ray".
        ray_options: Options of the Ray actors.

    Raises:
        ValueError: A parameter out of its range; the message names it.
        DependencyNotInstalled: Ray is missing.
        Exception: Raised by making the reward model, also in a worker.
    """
    check_backend(backend, ray_options)
    check_integer("num_workers", num_workers, minimum=0)
    if not in_workers:
        num_workers, devices = 0, None
    started = importlib.import_module(BACKENDS[backend if num_workers else LOCAL]).start(
        ScorerOptions(
            make_reward=make_reward,
            make_renderer=make_renderer,
            num_workers=num_workers,
            devices=devices,
            device=device,
            timeouts=timeouts or Timeouts(),
            backend_options=ray_options or {},
        )
    )
    return ScoringQueue(
        started.scorers,
        batch_size=started.batch_size,
        max_pending_bytes=max_pending_bytes,
        info=started.info,
    )


def check_backend(backend: str, ray_options: Mapping[str, Any] | None) -> None:
    """Raise ValueError unless the backend exists and takes the options."""
    check_choice("backend", backend, tuple(name for name in BACKENDS if name != LOCAL))
    if ray_options is not None and backend != "ray":
        received = f"{short_repr(ray_options)} and backend={backend!r}"
        raise ValueError(f'`ray_options` needs backend="ray". Received {received}.')
    if ray_options is not None and not isinstance(ray_options, Mapping):
        rule = '`ray_options` must be a mapping such as {"num_gpus": 0.25}'
        raise ValueError(f"{rule}. Received {short_repr(ray_options)}.")
