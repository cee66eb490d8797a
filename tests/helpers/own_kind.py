"""A kind of reward that the package does not know, as a user writes it: a specification, and a model with features."""

from dataclasses import dataclass

import numpy as np

import vlmrm_gym


@dataclass(frozen=True, kw_only=True)
class Level(vlmrm_gym.RewardSpec):
    """How bright the first pixel is, times a scale."""

    scale: float = 1.0

    def __post_init__(self):
        if self.scale <= 0:
            raise ValueError(f"`scale` must be above 0. Received {self.scale!r}.")

    def build(self, device="auto"):
        return LevelModel(self.scale)


class LevelModel(vlmrm_gym.RewardModel):
    """Its features are the pixel, and 1."""

    batch_size, feature_size, fingerprint = 7, 2, "first pixel"

    def __init__(self, scale):
        self.scale = scale

    def encode(self, frames):
        return np.stack([frames[:, 0, 0, 0], np.ones(len(frames))], axis=1)

    def head(self, features):
        return self.scale * features[:, 0, 0]
