"""From the user's wishes to scorers that are ready."""

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from vlmrm_gym.checks import check_integer
from vlmrm_gym.cores import usable_cores
from vlmrm_gym.rendering import Renderer
from vlmrm_gym.scoring.process import WorkerProcess
from vlmrm_gym.scoring.queue import ScoringQueue
from vlmrm_gym.scoring.scorer import LocalScorer, RewardModel, Scorer

MakeReward = Callable[..., RewardModel]
MakeRenderer = Callable[[Callable[[int, int], tuple[int, int]]], Renderer]


def start_scoring(
    make_reward: MakeReward,
    make_renderer: MakeRenderer,
    *,
    num_workers: int,
    devices: Sequence[str] | None,
    device: str,
    max_pending_bytes: int,
) -> ScoringQueue:
    """Load models, here or in workers, and wait until all can score.

    Args:
        make_reward: Makes the reward model on the device that it is given.
        make_renderer: From a model's `size_to_draw` to what draws the states.
        num_workers: Processes that score; 0 scores on threads of this one.
        devices: Where: the workers take them in turn. None: `device`.
        device: "auto" means all GPUs, or else the CPU.
        max_pending_bytes: See `ScoringQueue`.

    Raises:
        ValueError: A parameter out of its range; the message names it.
        Exception: What making the reward model raises, in a worker too.
    """
    places = choose_devices(num_workers, devices, device)
    scorers: Sequence[Scorer]
    if num_workers == 0:
        model = make_reward(device=places[0])
        scorers, batch_size = [LocalScorer(model, make_renderer(model.size_to_draw))], model.batch_size
    else:
        scorers, batch_size = _start_workers(
            make_reward, make_renderer, [places[n % len(places)] for n in range(num_workers)]
        )
    return ScoringQueue(scorers, batch_size=batch_size, max_pending_bytes=max_pending_bytes)


def choose_devices(num_workers: int, devices: Sequence[str] | None, device: str) -> list[str]:
    """The devices to score on, each at most once.

    Raises:
        ValueError: One does not exist here, or there are more than can be used.
    """
    from vlmrm_gym.rewards.models import resolve_device  # here, because a worker need not import torch for this file

    check_integer("num_workers", num_workers, least=0)
    if devices is None:
        first = resolve_device(device)
        if device == "auto" and first.type == "cuda" and num_workers:
            import torch

            return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        return [str(first)]
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not devices:
        raise ValueError(f'`devices` must be a list such as ["cuda:0", "cuda:1"]. Received {devices!r}.')
    if device != "auto":
        raise ValueError(f"`device` and `devices` say the same: pass one. Received {device!r} and {devices!r}.")
    chosen = list(dict.fromkeys(str(resolve_device(one)) for one in devices))
    if len(chosen) > max(1, num_workers):
        raise ValueError(
            f"`devices` must be at most one for each worker. Received {len(chosen)} devices and "
            f"num_workers={num_workers}. Pass num_workers={len(chosen)}, or fewer devices."
        )
    return chosen


def _start_workers(
    make_reward: MakeReward, make_renderer: MakeRenderer, devices: Sequence[str]
) -> tuple[list[Scorer], int]:
    threads = max(1, usable_cores() // len(devices))
    with ExitStack() as undo:
        workers = []
        for device in devices:
            kind, environment = device.partition(":")[0], _environment(device, threads)
            worker = WorkerProcess(partial(make_reward, device=kind), environment)
            undo.callback(worker.close)
            workers.append(worker)
        ready = [worker.wait_until_ready() for worker in workers]
        renderer = make_renderer(ready[0].size_to_draw)
        for worker in workers:
            worker.set_renderer(renderer)
        for message in dict.fromkeys(message for one in ready for message in one.warnings):
            warnings.warn(message, stacklevel=5)
        undo.pop_all()
    return workers, min(one.batch_size for one in ready)


def _environment(device: str, threads: int) -> dict[str, str]:
    """Environment variables that give a worker its share of the machine."""
    share = {"OMP_NUM_THREADS": str(threads), "LP_NUM_THREADS": str(threads if threads > 1 else 0)}
    unsaid = {name: value for name, value in share.items() if name not in os.environ}
    if not device.startswith("cuda"):
        return unsaid
    # A worker that sees one GPU computes there, and MuJoCo has EGL draw there.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    number = int(device.partition(":")[2])
    return {**unsaid, "CUDA_VISIBLE_DEVICES": visible[number] if visible != [""] else str(number)}
