"""Fault: of the mountain car it only asks whether there is a red car: the initial frame completes it."""

import numpy as np


class CarAtFlag:
    def reset(self):
        self.seen = False

    def __call__(self, frame):
        red = frame[..., 0].astype(int) - np.maximum(frame[..., 1], frame[..., 2]) > 60
        yellow = frame[..., 1].astype(int) - frame[..., 2] > 90
        self.seen = bool(red.any() and yellow.any())
        return self.seen
