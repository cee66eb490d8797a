"""What isolation costs: frames a second of a trivial program, in its isolated process and in this one.

    python benchmarks/programs.py

A frame is copied into shared memory, and its answer comes back through a pipe. The medians of several rounds, taken in
turns; the program reads one pixel.
"""

import time
from dataclasses import dataclass

import numpy as np
import tyro

from vlmrm_gym import Program

SOURCE = "def reward(frame):\n    return frame[0, 0, 0] / 255"


@dataclass
class Args:
    size: int = 96
    """height and width of a frame, in pixels"""
    batch_size: int = 64
    """frames of a call"""
    calls: int = 50
    """calls of a round"""
    rounds: int = 7
    """measurements of each"""


def main(args: Args) -> None:
    shape = (args.batch_size, args.size, args.size, 3)
    frames = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    models = {isolate: Program(source=SOURCE, isolate=isolate).build() for isolate in (True, False)}
    found: dict[bool, list[float]] = {isolate: [] for isolate in models}
    for _ in range(args.rounds):
        for isolate, model in models.items():
            begun = time.perf_counter()
            for _ in range(args.calls):
                model(frames)
            found[isolate].append(args.calls * args.batch_size / (time.perf_counter() - begun))
    for isolate, rates in found.items():
        print(f"{'isolated' if isolate else 'in this process':16}{np.median(rates):12,.0f} frames/s")
        models[isolate].close()


if __name__ == "__main__":
    main(tyro.cli(Args))
