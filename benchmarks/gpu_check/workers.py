"""The same episodes scored in this process, in workers, on several GPUs and on Ray: rewards, rates, memory."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.gpu_check.frames import ENV_ID
from benchmarks.gpu_check.report import Row, Skipped
from benchmarks.gpu_check.settings import Settings, random_model

LIMIT = {"cuda": 5e-3, "cpu": 1e-5}
"""The largest allowed difference between ways of scoring: workers cut other batches, and fp16 depends on the batch."""


@dataclass(frozen=True)
class Scored:
    """Episodes that were scored in one way."""

    rewards: np.ndarray
    """float32 (episodes, T)."""
    rate: float
    """Transitions/s, from the first step to the last reward; loading is not counted."""
    memory: tuple[float, ...]
    """GB in use on each GPU while the scorers live, this process and others included."""


def one_gpu(settings: Settings) -> Iterator[Row]:
    """In this process, then 1, 2 and 4 workers on one GPU."""
    device = "cuda:0" if settings.on_gpu else settings.device
    for architecture in ["tiny", *settings.large_models]:
        with random_model(architecture) as model:
            expected = score_episodes(settings, model=model, device=device)
            yield from _describe(f"{architecture}, this process", expected)
            for num_workers in (2,) if settings.quick else (1, 2, 4):
                scored = score_episodes(settings, model=model, device=device, num_workers=num_workers)
                yield from _describe(f"{architecture}, {num_workers} worker(s)", scored, expected, settings)


def several_gpus(settings: Settings) -> Iterator[Row]:
    """One worker, then one and two for each GPU; every GPU must hold a model."""
    if settings.on_gpu and settings.num_gpus < 2:
        raise Skipped("there is one GPU")
    devices = [f"cuda:{number}" for number in range(settings.num_gpus)] if settings.on_gpu else [settings.device]
    before = memory_in_use()
    for architecture in ["tiny", *settings.large_models]:
        with random_model(architecture) as model:
            expected = score_episodes(settings, model=model, devices=devices[:1], num_workers=1)
            yield from _describe(f"{architecture}, 1 worker on {devices[0]}", expected)
            for each in (1,) if settings.quick else (1, 2):
                what = f"{architecture}, {each} worker(s) on each of {len(devices)}"
                num_workers = each * len(devices)
                scored = score_episodes(settings, model=model, devices=devices, num_workers=num_workers)
                yield from _describe(what, scored, expected, settings)
                if settings.on_gpu:
                    used = [now - then for now, then in zip(scored.memory, before, strict=True)]
                    yield Row.holds(
                        f"{what}: GB used on each", ", ".join(f"{one:.2f}" for one in used), min(used) > 0.1
                    )


def on_ray(settings: Settings) -> Iterator[Row]:
    """Actors that share a GPU, a quarter each."""
    if find_spec("ray") is None:
        raise Skipped('Ray is not installed: pip install "vlmrm-gym[ray]"')
    share = {"num_gpus": 0.25, "num_cpus": 1} if settings.on_gpu else {"num_cpus": 0.25}
    num_workers = 2 if settings.quick else 4
    for architecture in ["tiny", *settings.large_models]:
        with random_model(architecture) as model:
            device = "cuda:0" if settings.on_gpu else settings.device
            expected = score_episodes(settings, model=model, device=device, num_workers=num_workers)
            yield from _describe(f"{architecture}, {num_workers} processes", expected)
            scored = score_episodes(settings, model=model, num_workers=num_workers, backend="ray", ray_options=share)
            what = f"{architecture}, {num_workers} actors with {share}"
            yield from _describe(what, scored, expected, settings)
            yield Row(f"{what}: rate / rate of processes", f"{scored.rate / expected.rate:.2f}")


def score_episodes(settings: Settings, **options: Any) -> Scored:
    """Run whole episodes of the humanoid with the same seeds and actions, and score them in the way of the options."""
    num_envs, length, episodes = (2, 5, 2) if settings.quick else (16, 50, 4)
    envs: Any = gym.make_vec(ENV_ID, num_envs, episode_length=length, overlap=True, **options)
    try:
        envs.action_space.seed(0)
        envs.reset(seed=0)
        rewards: list[list[np.ndarray]] = [[] for _ in range(num_envs)]

        def run(count: int) -> None:
            """Further episodes of every environment, each with the step that only resets."""
            for _ in range(count * (length + 1)):
                collect(envs.step(envs.action_space.sample())[4])
            collect(envs.flush())

        def collect(infos: dict[str, Any]) -> None:
            for number in np.flatnonzero(infos["_vlm_rewards"]):
                rewards[number].append(infos["vlm_rewards"][number])

        run(1)  # contexts, allocators, first kernels
        start = time.perf_counter()
        run(episodes)
        rate = num_envs * length * episodes / (time.perf_counter() - start)
        memory = memory_in_use()
    finally:
        envs.close()
    return Scored(np.stack([np.concatenate(one) for one in rewards]), rate, memory)


def memory_in_use() -> tuple[float, ...]:
    """GB in use on each GPU, by all processes; empty without a GPU."""
    pairs = [torch.cuda.mem_get_info(number) for number in range(torch.cuda.device_count())]
    return tuple((total - free) / 1e9 for free, total in pairs)


def _describe(
    what: str, scored: Scored, expected: Scored | None = None, settings: Settings | None = None
) -> Iterator[Row]:
    memory = f", GB in use: {', '.join(f'{one:.1f}' for one in scored.memory)}" if scored.memory else ""
    yield Row(f"{what}: transitions/s", f"{scored.rate:.0f}{memory}")
    if expected is not None and settings is not None:
        apart = float(np.abs(scored.rewards - expected.rewards).max())
        yield Row.at_most(f"{what}: largest difference", apart, LIMIT[settings.device])
