r"""Train cart-pole from comparisons that a server on the loopback answers from pixels, and count what it was asked.

    python benchmarks/train_over_endpoint.py
    python benchmarks/train_over_endpoint.py --seeds 1 2 3 --stages 2

The server is that of the tests: it measures the pole in the images that it gets, and words its answers without knowing
how they are read. It also sees how near the cart is to an end of its track, as the agent would balance there. Of 50
requests it refuses one as busy (429 with `Retry-After`), breaks down (500), or answers with half a JSON. All else
is `vlmrm-gym train` as users run it. At the end: the success of each seed, what was asked, and whether anything twice.
"""

import os
import shlex
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import tyro

from vlmrm_gym._util.system import read_commit

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "helpers"))

from poles import AXLE, measure_angle  # noqa: E402
from vlm_server import KEY, VLMServer, body, busy, status  # noqa: E402


@dataclass
class Args:
    seeds: tuple[int, ...] = (1,)
    """one run per seed"""
    questions: int = 500
    """pairs of a run"""
    stages: int = 1
    """1: asked about the images, with log probabilities; 2: asked to describe them, then about the description"""
    runs_folder: Path = Path("runs/train_over_endpoint")
    """parent folder of the runs"""


def measure(image: np.ndarray) -> float:
    """Degrees by which the pole leans; an end of the track counts as much as a pole that has fallen by 12 degrees."""
    (_, x) = np.argwhere((image == np.array(AXLE)).all(-1)).mean(0)
    to_end = abs(2 * x / image.shape[1] - 1)
    return max(measure_angle(image), 12 * (4 * to_end - 3))


def main(args: Args) -> None:
    print(f"{args.questions} questions in both orders, stages: {args.stages}; commit {read_commit() or 'unknown'}")
    for seed in args.seeds:
        with VLMServer(logprobs="tokens" if args.stages == 1 else None, measure=measure) as server:
            faults = cycle([busy(0.2), status(500), body(b'{"choices": [')])
            rare = ([None] * 49 + [fault] for fault in islice(faults, 40 * args.questions // 50))
            server.faults = deque(fault for some in rare for fault in some)
            settings = f"kind: endpoint, model: pole-gauge-1, base_url: '{server.url}', stages: {args.stages}"
            labeler = f"{{{settings}, size: [400, 600], max_calls: {20 * args.questions}}}"
            schedule = f"--preferences.total {args.questions} --preferences.every 800 --preferences.half-life 2000"
            options = f"--reward preference --labeler {shlex.quote(labeler)} {schedule}"
            command = ["training_seeds.py", "cart-pole-sb3", "--seeds", str(seed), "--at-once", "1"]
            command += ["--runs-folder", str(args.runs_folder), f"--options={options}"]
            subprocess.run(
                [sys.executable, ROOT / "benchmarks" / command[0], *command[1:]],
                env={**os.environ, "OPENAI_API_KEY": KEY},
                check=True,
            )
            twice = sum(count > 1 for (first, second), count in server.asked.items() if first != second)
            print(f"seed {seed}: {server.requests:,} requests, {len(server.asked):,} orders of pairs, {twice} twice")
        written = (path for path in args.runs_folder.rglob("*") if path.is_file())
        print(f"files with the key in them: {sum(KEY.encode() in path.read_bytes() for path in written)}", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
