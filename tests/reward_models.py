"""Reward models whose rewards tell what was scored, for tests; workers import them by name."""

import os
import sys
import time
from pathlib import Path

import numpy as np

from vlmrm_gym.rendering.stored import StoredFrames


def same_size(height, width):
    return height, width


class PixelReward:
    """The number that the top left pixel encodes: its red, plus 256 times its green, plus 65,536 times its blue."""

    size_to_draw = staticmethod(same_size)
    slice_size = 25

    def __init__(self, model="tiny", *, prompt="", batch_size=None, device="cpu", **_):
        self.prompt, self.batch_size = prompt, batch_size or 64

    def __call__(self, frames):
        return (frames[:, 0, 0].astype(np.int64) @ (1, 256, 65536)).astype(np.float32)


class SlowReward(PixelReward):
    """Takes 20 ms a frame."""

    def __call__(self, frames):
        time.sleep(0.02 * len(frames))
        return super().__call__(frames)


class MortalReward(PixelReward):
    """Dies of a frame that encodes 7, saying so, unless the file that the prompt names is there."""

    def __call__(self, frames):
        rewards = super().__call__(frames)
        if 7 in rewards and not Path(self.prompt).exists():
            print("seven is too much for me", file=sys.stderr, flush=True)
            os._exit(3)
        return rewards


class FaultyReward(PixelReward):
    """Raises at a frame that encodes 7, unless the file that the prompt names is there."""

    def __call__(self, frames):
        rewards = super().__call__(frames)
        if 7 in rewards and not Path(self.prompt).exists():
            raise ArithmeticError("seven cannot be scored")
        return rewards


class ExitingReward(PixelReward):
    """Leaves."""

    def __call__(self, frames):
        sys.exit("goodbye")


class TorchReward(PixelReward):
    """Takes some 20 ms of torch for a frame."""

    def __call__(self, frames):
        import torch

        until = time.monotonic() + 0.02 * len(frames)
        while time.monotonic() < until:
            torch.nn.functional.conv2d(torch.ones(8, 16, 96, 96), torch.ones(16, 16, 3, 3))
        return super().__call__(frames)


class DeadlyFrames(StoredFrames):
    """Frames; to draw one that encodes 7 is deadly."""

    def render(self, states):
        if 7 in states[:, 0, 0, 0]:
            os._exit(5)
        return super().render(states)
