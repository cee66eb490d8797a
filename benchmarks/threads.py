"""Threads of the bundled model's encoder: torch's default, one, and ours, on this machine as it is and made busy.

    python benchmarks/threads.py
    python benchmarks/threads.py --busy 0 6 --seconds 3 --rounds 7   # numbers of processes that only spin

Each way has a process of its own, and they take turns. Frames are random, in one call of `CLIPReward`; steps are of
`VLMReward` on cart-pole, which scores each state at once; the demo is the training of `make demo`, cut short, with a
process for each turn. Figures are medians over the rounds; a ratio compares ours with the better of the two others.
"""

import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np
import tyro
from turns import in_turns

FRAMES = 1, 8, 64
PROMPT = "pole vertically upright on top of the cart"
OURS = "ours"
WAYS: dict[str, dict[str, str]] = {
    "torch's default": {},
    "one thread": {"OMP_NUM_THREADS": "1"},
    OURS: {},
}


@dataclass(frozen=True)
class Args:
    busy: tuple[int, ...] = (0, 6)
    """numbers of other processes that keep the cores busy"""
    seconds: float = 2.0
    """time of a turn"""
    rounds: int = 5
    """turns of each way"""
    demo_steps: int = 600
    """steps of the demo's training; 0: leave it out"""


def serve(way: str, connection: Any) -> None:
    """Measure what is asked for: calls or steps per second."""
    import vlmrm_gym
    from vlmrm_gym.rewards import encoder

    if way != OURS:
        encoder.in_parts = lambda work, batch: [work(batch)]
    reward = vlmrm_gym.CLIPReward("tiny", prompt=PROMPT, device="cpu")
    env = vlmrm_gym.VLMReward(gym.make("CartPole-v1", render_mode="rgb_array"), prompt=PROMPT, device="cpu")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    frames = {count: rng.integers(0, 256, (count, 72, 108, 3), dtype=np.uint8) for count in FRAMES}

    def step() -> None:
        if any(env.step(env.action_space.sample())[2:4]):
            env.reset()

    work = {"steps of VLMReward": step, **{f"calls with {n} frames": lambda n=n: reward(frames[n]) for n in FRAMES}}
    for one in work.values():
        one()
    connection.send(list(work))
    while (asked := connection.recv()) is not None:
        what, seconds = asked
        begun, count = time.perf_counter(), 0
        while (took := time.perf_counter() - begun) < seconds:
            work[what]()
            count += 1
        connection.send(count / took)
    env.close()


DEMO = """
import os, runpy, sys, time
import vlmrm_gym._util.system
if sys.argv.pop(1) != "ours":
    vlmrm_gym._util.system.in_parts = lambda work, batch: [work(batch)]
begun = time.perf_counter()
runpy.run_path("examples/dqn_cartpole.py", run_name="__main__")
print(f"\\n{time.perf_counter() - begun}")
"""


def demo(way: str, steps: int) -> float:
    """Steps per second of a short training of the demo, with its evaluation and files."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | WAYS[way]
    with TemporaryDirectory() as folder:
        arguments = ["--total-timesteps", str(steps), "--no-capture-video", "--runs-folder", folder]
        command = [sys.executable, "-c", DEMO, way, *arguments]
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return steps / float(done.stdout.splitlines()[-1])


def main(args: Args) -> None:
    connections, names = {}, []

    def rate(way: str, what: str) -> float:
        if what == "steps of the demo":
            return demo(way, args.demo_steps)
        connections[way].send((what, args.seconds))
        return connections[way].recv()

    with ExitStack() as stack:
        for way, environment in WAYS.items():
            os.environ.pop("OMP_NUM_THREADS", None)
            os.environ.update(environment)
            connections[way], theirs = get_context("spawn").Pipe()
            process = get_context("spawn").Process(target=serve, args=(way, theirs), daemon=True)
            process.start()
            stack.callback(connections[way].send, None)
            names = connections[way].recv()
        for busy in args.busy:
            spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
            try:
                print(f"\n{busy} other processes (load {os.getloadavg()[0]:.1f}); {', '.join(WAYS)}, ratio")
                for what in [*names, *["steps of the demo"] * bool(args.demo_steps)]:
                    rates = in_turns({way: partial(rate, way, what) for way in WAYS}, args.rounds)
                    *others, ours = [statistics.median(own) for own in rates.values()]
                    figures = "".join(f"{rate:>10.2f}" for rate in (*others, ours))
                    print(f"  {what + '/s':<28}{figures}{ours / max(others):>8.2f}", flush=True)
            finally:
                for one in spinning:
                    one.kill()
                    one.wait()


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
