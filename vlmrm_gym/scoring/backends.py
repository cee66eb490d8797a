"""Starts scorer backends, and chooses their devices."""

import importlib
import os

from vlmrm_gym._util.errors import close_on_error
from vlmrm_gym.rewards.heads import CombineViews
from vlmrm_gym.scoring.options import ScoringOptions
from vlmrm_gym.scoring.queue import ScoringQueue
from vlmrm_gym.scoring.scorer import MODULES, MakeEncoder, MakeRenderer


def make_scoring_queue(
    make_encoder: MakeEncoder,
    make_renderer: MakeRenderer,
    options: ScoringOptions | None = None,
    combine: CombineViews | None = None,
) -> ScoringQueue:
    """Load models in this process or in workers, and wait until they are ready.

    `combine` says how the rewards of views make one. Without options a model that the caller has loaded scores here.
    """
    options = options or ScoringOptions(device="cpu")
    name = MODULES[options.backend if options.num_workers else "local"]
    backend = importlib.import_module(f"vlmrm_gym.scoring.{name}")
    started = backend.start(make_encoder, make_renderer, options)
    with close_on_error(started.scorers):
        head = started.info.make_head(combine)
    # Half is for states that have not been submitted.
    return ScoringQueue(started, head, max_pending_bytes=options.max_pending_bytes // 2)


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
