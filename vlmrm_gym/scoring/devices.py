"""Choice of devices, and environment variables that limit a worker's GPUs and threads."""

import os
from collections.abc import Sequence

from vlmrm_gym.validation import short_repr


def choose_devices(num_workers: int, devices: Sequence[str] | None, device: str) -> list[str]:
    """The devices to score on, each at most once.

    Raises:
        ValueError: One does not exist here, or there are more than can be used.
    """
    from vlmrm_gym.rewards.devices import resolve_device  # deferred: a worker need not import torch for this file

    if devices is None:
        first = resolve_device(device)
        if device == "auto" and first.type == "cuda" and num_workers:
            import torch

            return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        return [str(first)]
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not devices:
        raise ValueError(f'`devices` must be a list such as ["cuda:0", "cuda:1"]. Received {short_repr(devices)}.')
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
