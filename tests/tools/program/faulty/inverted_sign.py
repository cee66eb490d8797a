"""Fault: the sign is inverted: the reward grows with the tilt of the pole."""

import numpy as np


def reward(frame):
    brown = frame[..., 0].astype(int) - frame[..., 2] > 50
    rows, columns = np.nonzero(brown)
    if not len(rows):
        return 0.0
    tilt = np.ptp(columns) / frame.shape[1] / max(np.ptp(rows) / frame.shape[0], 1e-3)
    return min(1.0, float(tilt))
