"""Driver throughput in states/s when rendering and scoring are free, and the number of GPUs that one driver can feed.

    python benchmarks/driver.py                                # worker processes and Ray in turn; Ray over a network
    python benchmarks/driver.py --backends process --no-wire   # without Ray

The driver is the process that steps the environments, batches their states and delivers rewards. States have the size
of a humanoid's (24 numbers, 192 bytes), in episodes of 100 steps; the renderer returns a preallocated array, and all
rewards are 0. Two loads:

- queue: precomputed states, submitted to the scoring queue.
- environments: `VLMRewardVectorEnv` with overlap, on 16 environments with a free step, until all rewards have arrived.

The backends alternate in one process, so other load on the machine affects both; figures are medians over the rounds.

- states/s: bounded by the driver and by the workers, which share this machine's cores.
- driver CPU s per million states: user and system time of the driver process, all threads. 1e6 divided by it is the
  maximum states/s per core of a driver with dedicated cores.
- other CPU s per million states: child processes: the workers, and Ray's own (raylet, GCS).

Bytes on the wire: both loads in a network of two hosts (`network_hosts.py`), with the driver on one and the actors on
the other. Bytes per state, Ethernet headers included, from the counters of the driver's network interface over the
driver's lifetime. Needs root and iproute2.

GPUs per driver: see `gpus_per_driver.py`.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import tyro
from gpus_per_driver import table
from network_hosts import HostsUnavailable, Network, check_available
from processes import cpu_seconds
from stubs import Blank, BuiltBy, DrawOnly, FreeEnvs, same_size

import vlmrm_gym
from vlmrm_gym.scoring import Request, make_scoring_queue
from vlmrm_gym.scoring.options import ScoringOptions
from vlmrm_gym.scoring.state_encoder import build_encoder
from vlmrm_gym.states import States

EPISODE, EPISODES_AT_ONCE, NUM_ENVS = 100, 160, 16
RATIO = 0.7
"""Minimum states/s of the other backend, relative to the first."""
Backend = Literal["process", "ray"]


@dataclass(frozen=True)
class Args:
    backends: tuple[Backend, ...] = ("process", "ray")
    """backends to measure; ratios are relative to the first"""
    num_workers: int = 2
    """processes or actors that score"""
    batch_size: int = 256
    """maximum batch size; `CLIPReward` uses 256 on a GPU, 64 on a CPU"""
    seconds: float = 4.0
    """approximate length of each timed turn"""
    rounds: int = 5
    """turns per backend and load"""
    utilization: float = 0.4
    """assumed fraction of the GPU's peak that the image towers reach"""
    wire: bool = True
    """measure the bytes on the wire; needs Ray among the backends, root and iproute2"""
    towers: bool = True
    """compute the table of GPUs per driver"""
    json: Path | None = None
    """file for the figures"""


@dataclass(frozen=True)
class Turn:
    states: int
    seconds: float
    driver_cpu: float
    other_cpu: float


@dataclass(frozen=True)
class Summary:
    rate: float
    """States/s."""
    driver_cpu: float
    """Seconds per million states."""
    other_cpu: float
    """Seconds per million states."""

    @classmethod
    def of(cls, turns: list[Turn]) -> "Summary":
        """Medians over turns."""

        def median(figure: Callable[[Turn], float]) -> float:
            return statistics.median(figure(turn) for turn in turns)

        return cls(
            median(lambda turn: turn.states / turn.seconds),
            median(lambda turn: turn.driver_cpu / turn.states * 1e6),
            median(lambda turn: turn.other_cpu / turn.states * 1e6),
        )


def make_draw_only(batch_size: int, device: str) -> DrawOnly:
    """A reward that looks at nothing."""
    return DrawOnly(same_size, batch_size)


class QueueLoad:
    """Submits precomputed states."""

    def __init__(self, backend: Backend, args: Args) -> None:
        self._queue = make_scoring_queue(
            partial(build_encoder, partial(make_draw_only, args.batch_size), 1),
            lambda render_size: Blank(),
            ScoringOptions(backend=backend, num_workers=args.num_workers, device="cpu"),
        )
        self._states, self._keys = States(np.random.default_rng(0).normal(size=(EPISODE, 24))), np.arange(EPISODE)

    def run(self) -> int:
        """Score one load of episodes; returns the number of states."""
        requests = [Request(self._states, self._keys) for _ in range(EPISODES_AT_ONCE)]
        self._queue.submit(*requests)
        for request in requests:
            if error := request.error():
                raise error
        return EPISODES_AT_ONCE * EPISODE

    def close(self) -> None:
        """End the workers."""
        self._queue.close()


class EnvironmentsLoad:
    """Steps environments with a free step."""

    def __init__(self, backend: Backend, args: Args) -> None:
        self._envs = vlmrm_gym.VLMRewardVectorEnv(
            FreeEnvs(NUM_ENVS, EPISODE),
            reward=BuiltBy(partial(DrawOnly, same_size, args.batch_size)),
            backend=backend,
            num_workers=args.num_workers,
            device="cpu",
            overlap=True,
        )
        self._actions = self._envs.action_space.sample()
        self._envs.reset(seed=0)

    def run(self) -> int:
        """Step and flush; returns the number of scored transitions."""
        infos = [self._envs.step(self._actions)[-1] for _ in range(EPISODES_AT_ONCE // NUM_ENVS * (EPISODE + 1))]
        infos.append(self._envs.flush())
        return sum(len(rewards) for info in infos for rewards in info["vlm_rewards"][info["_vlm_rewards"]])

    def close(self) -> None:
        """End the workers."""
        self._envs.close()


LOADS = {"queue": QueueLoad, "environments": EnvironmentsLoad}


def take_turn(run: Callable[[], int], seconds: float) -> Turn:
    states, start, driver, others = 0, time.perf_counter(), time.process_time(), cpu_seconds()
    while (took := time.perf_counter() - start) < seconds:
        states += run()
    return Turn(states, took, time.process_time() - driver, cpu_seconds() - others)


def measure(args: Args) -> dict[str, dict[str, list[Turn]]]:
    """Turns of each load and backend; the first of each is a shorter warm-up."""
    turns: dict[str, dict[str, list[Turn]]] = {}
    for name, load in LOADS.items():
        running = {backend: load(backend, args) for backend in args.backends}
        turns[name] = {backend: [take_turn(one.run, args.seconds / 2)] for backend, one in running.items()}
        try:
            for _ in range(args.rounds):
                for backend, one in running.items():
                    turns[name][backend].append(take_turn(one.run, args.seconds))
        finally:
            for one in running.values():
                one.close()
    return turns


@dataclass(frozen=True)
class Wire:
    sent: float
    """Bytes per state from the driver's host."""
    received: float
    idle: float
    """Bytes per second, both directions, while the cluster is idle."""


def measure_wire(args: Args) -> Wire:
    """Run this file on the head of a cluster of two hosts; the other host scores."""
    with TemporaryDirectory() as folder, Network() as network:
        figures = Path(folder) / "figures.json"
        head, other = network.add_host("head"), network.add_host("other")
        head.start_ray(num_cpus=0)
        other.start_ray(num_cpus=args.num_workers, head=head)
        before = head.traffic()
        time.sleep(10.0)
        idle = (sum(head.traffic()) - sum(before)) / 10.0
        command = [sys.executable, __file__, "--backends", "ray", "--num-workers", str(args.num_workers)]
        command += ["--batch-size", str(args.batch_size), "--seconds", str(args.seconds), "--rounds", str(args.rounds)]
        before = head.traffic()
        head.run(
            [*command, "--no-wire", "--no-towers", "--json", str(figures)],
            env={"RAY_ADDRESS": head.ray_address},
            timeout=600.0,
        )
        after = head.traffic()
        turns = json.loads(figures.read_text())["turns"]
    states = sum(turn["states"] for load in turns.values() for turn in load["ray"])
    return Wire((after[0] - before[0]) / states, (after[1] - before[1]) / states, idle)


def main(args: Args) -> None:
    turns = measure(args)
    summaries = {name: {b: Summary.of(own[1:]) for b, own in load.items()} for name, load in turns.items()}
    print(
        f"{args.num_workers} workers, batches of at most {args.batch_size}, {args.rounds} turns of {args.seconds:g} s"
    )
    print(f"  {'':<28}{'states/s':>12}{'driver CPU s/M':>16}{'other CPU s/M':>16}")
    for name, load in summaries.items():
        for backend, one in load.items():
            print(f"  {name + ', ' + backend:<28}{one.rate:>12,.0f}{one.driver_cpu:>16.2f}{one.other_cpu:>16.2f}")
        first, *others = load
        for other in others:
            ratio = load[other].rate / load[first].rate
            met = "yes" if ratio >= RATIO else "NO"
            print(f"  {f'{name}, {other} / {first}':<28}{ratio:>12.2f}  >= {RATIO:g} {met}")
    wire = None
    if args.wire and "ray" in args.backends:
        try:
            check_available()
            wire = measure_wire(args)
            print(
                f"\nbytes on the wire for each state of 192 bytes: {wire.sent:.1f} sent, {wire.received:.1f} received"
            )
            print(f"idle cluster of two hosts: {wire.idle:,.0f} bytes/s")
        except HostsUnavailable as error:
            print(f"\nBytes on the wire were not measured. {error}")
    if args.towers:
        cpu = {backend: one.driver_cpu for backend, one in summaries["environments"].items()}
        print(table(cpu, None if wire is None else max(wire.sent, wire.received), args.utilization))
    if args.json:
        settings = {**asdict(args), "json": str(args.json)}
        figures = {"settings": settings, "turns": turns, "wire": wire}
        args.json.write_text(json.dumps(figures, indent=2, default=asdict))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(tyro.cli(Args, description=__doc__))
