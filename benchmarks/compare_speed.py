"""Speed and memory of this checkout and of another one, in turns.

    python benchmarks/compare_speed.py /path/to/another/checkout
    python benchmarks/compare_speed.py /path/to/another/checkout --rounds 9 --parts relabelling "cart-pole, step"

For each part both checkouts have a process of their own, which stays. After a warm-up they take turns of `--seconds`:
transitions/s with their rewards, or transitions relabelled/s. Figures are medians over the turns; ratios are those of
this checkout to the other. Peaks: resident memory of the process that steps, and the sum of its workers' (Linux only).
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import tyro
from memory import read
from processes import descendants, start_in_checkout


@dataclass(frozen=True)
class Args:
    other: Annotated[Path, tyro.conf.Positional]
    """the other checkout"""
    rounds: int = 5
    """turns of each checkout"""
    seconds: float = 1.5
    """length of a turn; whole episodes, so it can be longer"""
    parts: tuple[str, ...] = ()
    """what is measured; default: everything"""


def episodes(id: str, num_envs: int, steps: int, **options: Any) -> Callable[[], int]:
    """Plays an episode in each environment, and waits for its rewards."""
    import vlmrm_gym  # noqa: F401 (registers the IDs)

    envs: Any = gym.make_vec(id, num_envs, episode_length=steps, model="tiny", **options)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(steps)]

    def play() -> int:
        envs.reset(seed=0)
        for action in actions:
            envs.step(action)
        envs.flush()
        return num_envs * steps

    return play


def relabelling(count: int = 100_000) -> Callable[[], int]:
    """Relabels a replay buffer: the smallest product over two views of 512 features each."""
    import torch

    package: Any = import_module("vlmrm_gym")
    if not hasattr(package, "ReplayBuffer"):  # an older checkout
        package.ReplayBuffer = import_module("vlmrm_gym.replay").ReplayBuffer
    from relabel import plain_buffer

    buffer = plain_buffer(count, 512, "float32", views=2)
    weights = torch.randn(512, generator=torch.Generator().manual_seed(0))

    def relabel() -> int:
        buffer.relabel(lambda features: (features @ weights).amin(1))
        return count

    return relabel


HUMANOID, CART_POLE = "VLMRM/Humanoid-kneel-v0", "VLMRM/CartPole-v1"
PARTS: dict[str, Callable[[], Callable[[], int]]] = {
    "humanoid": partial(episodes, HUMANOID, 8, 25),
    "humanoid, 2 workers": partial(episodes, HUMANOID, 8, 50, num_workers=2),
    "humanoid, 2 views": partial(episodes, HUMANOID, 8, 25, camera="front-side"),
    "humanoid, step": partial(episodes, HUMANOID, 8, 25, scoring="step"),
    "cart-pole": partial(episodes, CART_POLE, 8, 50),
    "cart-pole, step": partial(episodes, CART_POLE, 8, 50, scoring="step"),
    "relabelling": relabelling,
}


def serve(part: str, seconds: float) -> None:
    """Answer each line with a turn's rate and the peaks so far, in MB."""
    run = PARTS[part]()
    run()
    for _ in sys.stdin:
        begun, count = time.perf_counter(), 0
        while (took := time.perf_counter() - begun) < seconds:
            count += run()
        own, *workers = (read(pid)["peak RSS"] for pid in (os.getpid(), *descendants()))
        print(json.dumps([count / took, own, sum(workers)]), flush=True)


def measure(part: str, args: Args) -> list[list[float]]:
    """Rate and peaks of this checkout, and of the other."""
    turns: list[list[list[float]]] = [[], []]
    with ExitStack() as stack:
        code = f"import compare_speed as c; c.serve({part!r}, {args.seconds})"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes: list[Any] = [
            stack.enter_context(start_in_checkout(tree, code, **pipes))
            for tree in (Path(__file__).parents[1], args.other)
        ]
        for _ in range(args.rounds):
            for process, own in zip(processes, turns, strict=True):
                print(file=process.stdin, flush=True)
                if not (line := process.stdout.readline()):
                    sys.exit(f"{part}: a checkout failed; see above.")
                own.append(json.loads(line))
    return [
        [statistics.median(rates), max(peaks), max(sums)]
        for rates, peaks, sums in (zip(*own, strict=True) for own in turns)
    ]


def main(args: Args) -> None:
    print("| part | this | the other | ratio | peak, MB: this | the other | workers' peaks: this | the other |")
    print("|---|---|---|---|---|---|---|---|")
    for part in args.parts or PARTS:
        own, other = measure(part, args)
        peaks = (f"{figure:.0f}" for pair in zip(own[1:], other[1:], strict=True) for figure in pair)
        print(
            "|",
            " | ".join([part, f"{own[0]:,.0f}", f"{other[0]:,.0f}", f"{own[0] / other[0]:.3f}", *peaks]),
            "|",
            flush=True,
        )


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
