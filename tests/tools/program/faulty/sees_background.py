"""Fault: the colour asked for is the background's: it measures how white the upper half is, not the pole."""

import numpy as np


def reward(frame):
    upper = frame[: frame.shape[0] // 2]
    pole = np.all(upper > 200, axis=-1)  # "the pole is light"
    return float(min(1.0, pole.mean() / 0.9))
