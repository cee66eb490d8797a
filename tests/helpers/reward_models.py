"""Reward models whose rewards tell what was scored, for tests; workers import them by name."""

import os
import sys
import time
import warnings
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np

from vlmrm_gym.rewards.model import RewardModel
from vlmrm_gym.states.drawing import FrameStore


def same_size(height, width):
    return height, width


class PixelReward(RewardModel):
    """The number that the top left pixel encodes: its red, plus 256 times its green, plus 65,536 times its blue."""

    render_size = staticmethod(same_size)
    microbatch_size = 25

    def __init__(self, model="tiny", *, prompt="", batch_size=None, device="cpu", **_):
        self.prompt, self.batch_size = prompt, batch_size or 64

    def encode(self, frames):
        return (frames[:, 0, 0].astype(np.int64) @ (1, 256, 65536)).astype(np.float32)[:, None]


class ChecksumReward(PixelReward):
    """A checksum of all pixels of a frame: frames that differ in one have different rewards."""

    def encode(self, frames):
        return np.array([[checksum(frame)] for frame in frames], dtype=np.float32)


class RecordingReward(ChecksumReward):
    """Keeps the frames that it has scored."""

    seen: ClassVar[list[np.ndarray]] = []

    def encode(self, frames):
        self.seen.extend(frames.copy())
        return super().encode(frames)


def checksum(frame):
    """24 bits, which float32 can represent."""
    return zlib.crc32(np.ascontiguousarray(frame)) & 0xFFFFFF


class TwoFeatures(PixelReward):
    """Features, float32 (B, 2): the number that the pixel encodes, and 1. The reward is twice the number, plus 1."""

    feature_size = 2
    fingerprint = "two features"

    def encode(self, frames):
        numbers = super().encode(frames)
        return np.concatenate([numbers, np.ones_like(numbers)], axis=1)

    def head(self, features):
        return (features * features.new_tensor([2.0, 1.0])).sum((1, 2))


class SlowReward(PixelReward):
    """Takes 20 ms a frame."""

    def encode(self, frames):
        time.sleep(0.02 * len(frames))
        return super().encode(frames)


class MortalReward(PixelReward):
    """Dies of a frame that encodes 7, saying so, unless the file that the prompt names is there."""

    def encode(self, frames):
        rewards = super().encode(frames)
        if 7 in rewards and not Path(self.prompt).exists():
            print("seven is too much for me", file=sys.stderr, flush=True)
            with open(f"{self.prompt}.deaths", "a") as deaths:
                deaths.write("x")
            os._exit(3)
        return rewards


class FaultyReward(PixelReward):
    """Raises at a frame that encodes 7, unless the file that the prompt names is there."""

    def encode(self, frames):
        rewards = super().encode(frames)
        if 7 in rewards and not Path(self.prompt).exists():
            raise ArithmeticError("seven cannot be scored")
        return rewards


class WarningReward(PixelReward):
    """Warns when it is made, and of a frame that encodes 7."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        warnings.warn("made with care", stacklevel=2)

    def encode(self, frames):
        rewards = super().encode(frames)
        if 7 in rewards:
            warnings.warn("seven is odd", stacklevel=2)
        return rewards


class ExitingReward(PixelReward):
    """Leaves."""

    def encode(self, frames):
        sys.exit("goodbye")


class TorchReward(PixelReward):
    """Takes some 20 ms of torch for a frame."""

    def encode(self, frames):
        import torch

        until = time.monotonic() + 0.02 * len(frames)
        while time.monotonic() < until:
            torch.nn.functional.conv2d(torch.ones(8, 16, 96, 96), torch.ones(16, 16, 3, 3))
        return super().encode(frames)


class HangingFrames(FrameStore):
    """Frames; to draw one that encodes 7 hangs, the first time, which leaves a file as a mark."""

    def __init__(self, mark):
        super().__init__()
        self.mark = mark

    def render(self, states, changes=None):
        if 7 in states[:, 0, 0, 0] and not self.mark.exists():
            self.mark.touch()
            time.sleep(600)
        return super().render(states)


class HangingReward(PixelReward):
    """Hangs at a frame that encodes 7, saying so."""

    def encode(self, frames):
        rewards = super().encode(frames)
        if 7 in rewards:
            print("seven takes for ever", file=sys.stderr, flush=True)
            time.sleep(600)
        return rewards


class HangingLoad(PixelReward):
    """Hangs while it is made."""

    def __init__(self, *args, **kwargs):
        time.sleep(600)
