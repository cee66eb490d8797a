"""What clips cost: time to draw clips, against the time to draw single frames of the same states.

    python benchmarks/clips.py

Scores humanoid states in this process with a reward that looks at nothing, so that drawing is all that takes time:
as single frames and as clips, in turns. Frames that clips share are drawn once in a batch. The ratio is that of the
medians of the seconds.
"""

from dataclasses import dataclass
from functools import partial

import gymnasium as gym
import numpy as np
import tyro
from stubs import DrawOnly
from turns import median_seconds

from vlmrm_gym.rewards.model import ClipShape
from vlmrm_gym.scoring.select import EpisodeClips
from vlmrm_gym.states import States


@dataclass
class Args:
    length: int = 8
    """frames of a clip"""
    stride: int = 1
    """steps from one frame of a clip to the next"""
    batch_size: int = 64
    """states scored at once"""
    episode_length: int = 200
    """states of an episode"""
    rounds: int = 7
    """measurements of each"""


class DrawClips(DrawOnly):
    """Looks at nothing, of the size of the bundled model's input."""

    def __init__(self, clip: ClipShape, batch_size: int) -> None:
        super().__init__(lambda height, width: (96, 96), batch_size)
        self.clip_length, self.clip_stride = clip.length, clip.stride


def main(args: Args) -> None:
    """Measure, and print a line."""
    shapes = {"frames": ClipShape(), "clips": ClipShape(args.length, args.stride)}
    envs = {
        name: gym.make_vec("VLMRM/Humanoid-stand-v0", 1, reward=DrawClips(shape, args.batch_size))
        for name, shape in shapes.items()
    }
    rows = np.random.default_rng(0).normal(0, 0.1, (args.episode_length, 24))
    rows[:, 2:7] = [1.3, 1, 0, 0, 0]
    states = {name: EpisodeClips([shape]).extend(States(rows)) for name, shape in shapes.items()}
    scorers = {name: env.scorer for name, env in envs.items()}  # pyright: ignore[reportAttributeAccessIssue]
    ways = {name: partial(scorers[name].features, states[name]) for name in shapes}
    frames, clips = median_seconds(ways, args.rounds).values()
    print(
        f"clips of {args.length} frames, stride {args.stride}, batch {args.batch_size}: {1e3 * clips:.0f} ms for "
        f"{args.episode_length} states, {clips / frames:.2f} times the {1e3 * frames:.0f} ms of single frames"
    )
    for one in envs.values():
        one.close()


if __name__ == "__main__":
    main(tyro.cli(Args))
