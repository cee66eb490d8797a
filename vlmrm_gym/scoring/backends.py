"""Scorer backends by name, and their devices. A new one is a file with `start`, see `scorer`, and its name here."""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from vlmrm_gym._util.errors import close_on_error
from vlmrm_gym.rewards.heads import CombineViews
from vlmrm_gym.scoring.queue import ScoringQueue
from vlmrm_gym.scoring.scorer import MakeEncoder, MakeRenderer, ScorerOptions, Timeouts

Backend = Literal["process", "ray"]
"""Where workers run."""
MODULES: dict[Backend | Literal["local"], str] = {"local": "local", "process": "process", "ray": "ray_backend"}
"""Modules of this folder, imported on first use: Ray is optional. `num_workers=0` is "local": this process."""


def make_scoring_queue(
    make_encoder: MakeEncoder,
    make_renderer: MakeRenderer,
    *,
    combine: CombineViews | None = None,
    num_workers: int = 0,
    devices: Sequence[str] | None = None,
    device: str = "cpu",
    max_pending_bytes: int = sys.maxsize,
    timeouts: Timeouts | None = None,
    in_workers: bool = True,
    backend: Backend = "process",
    ray_options: Mapping[str, Any] | None = None,
) -> ScoringQueue:
    """Load models in this process or in workers, and wait until they are ready.

    `make_encoder` makes the encoder of states from `device`, see `build_encoder`, and `make_renderer` the renderer from
    a model's `render_size`; `combine` says how the rewards of views make one. 0 workers, or `in_workers=False`, score
    in this process, whatever the backend. The defaults are those of a model that the caller has loaded, and of states
    that all are in memory.
    """
    if not in_workers:
        num_workers, devices = 0, None
    started = importlib.import_module(f"vlmrm_gym.scoring.{MODULES[backend if num_workers else 'local']}").start(
        ScorerOptions(
            make_encoder=make_encoder,
            make_renderer=make_renderer,
            num_workers=num_workers,
            devices=devices,
            device=device,
            timeouts=timeouts or Timeouts(),
            backend_options=ray_options or {},
        )
    )
    with close_on_error(started.scorers):
        head = started.info.make_head(combine)
    return ScoringQueue(started, head, max_pending_bytes=max_pending_bytes)


def choose_devices(num_workers: int, devices: Sequence[str] | None, device: str) -> list[str]:
    """The devices to score on, each at most once."""
    from vlmrm_gym.rewards.devices import resolve_device  # deferred: a worker need not import torch for this file

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
