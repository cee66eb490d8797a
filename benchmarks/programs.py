"""What isolation costs: frames a second of a program, in its isolated process and in this one, and of a CLIP reward.

    python benchmarks/programs.py
    python benchmarks/programs.py --program examples/programs/kneel.py --env-id VLMRM/Humanoid-kneel-v0

A frame is copied into shared memory, and its answer comes back through a pipe. The medians of several rounds, taken in
turns, on one thread. Without --program it reads one pixel. The frames are of random actions; none is drawn meanwhile.
"""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from turns import in_turns

from vlmrm_gym import CLIP, Program
from vlmrm_gym.rewards import RewardModel
from vlmrm_gym.rewards.program.execution import ProgramReward
from vlmrm_gym.tasks import REGISTERED
from vlmrm_gym.tools.program.episodes import gather

SOURCE = "def reward(frame):\n    return frame[0, 0, 0] / 255"


@dataclass
class Args:
    program: Path | None = None
    """file of a program; None: a trivial one"""
    env_id: str = "VLMRM/CartPole-v1"
    """whose frames, and whose prompt: an ID of this package"""
    height: int = 96
    """of a frame, in pixels"""
    width: int = 96
    """of a frame, in pixels"""
    batch_size: int = 64
    """frames of a call"""
    calls: int = 10
    """calls of a round"""
    rounds: int = 7
    """measurements of each"""


def draw(args: Args) -> NDArray[np.uint8]:
    """uint8 (B, H, W, 3)."""
    size = (args.height, args.width)
    with gather(args.env_id, size=size, episodes=1, steps=args.batch_size) as examples:
        return examples.draw(next(one.states for one in examples.episodes if one.source == "random"))


def main(args: Args) -> None:
    torch.set_num_threads(1)
    frames = draw(args)
    source = SOURCE if args.program is None else args.program.read_text()
    models = {
        "isolated": ProgramReward(Program(source=source)),
        "in this process": ProgramReward(Program(source=source, isolate=False)),
        "CLIP, tiny": CLIP(prompt=str(REGISTERED[args.env_id].prompt), model="tiny").build("cpu"),
    }

    def rate(model: RewardModel) -> float:
        begun = time.perf_counter()
        for _ in range(args.calls):
            model(frames)
        return args.calls * len(frames) / (time.perf_counter() - begun)

    rates = in_turns({name: partial(rate, model) for name, model in models.items()}, args.rounds)
    for name, own in rates.items():
        print(f"{name:16}{np.median(own):12,.0f} frames/s")
    for name in ("isolated", "in this process"):
        models[name].close()


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
