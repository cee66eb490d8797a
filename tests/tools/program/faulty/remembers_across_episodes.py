"""Fault: the best column of the car is a global, which no reset clears: later episodes are paid for earlier ones."""

import numpy as np

BEST = 0.0


class CarAtFlag:
    def reset(self):
        pass

    def __call__(self, frame):
        global BEST
        red = frame[..., 0].astype(int) - np.maximum(frame[..., 1], frame[..., 2]) > 60
        if red.any():
            BEST = max(BEST, float(np.nonzero(red)[1].mean()) / frame.shape[1])
        return min(1.0, BEST / 0.9)
