"""Fault: the reward grows with the time since the program was loaded, whatever the frame shows."""

import time

STARTED = time.monotonic()


def reward(frame):
    red = frame[..., 0].astype(int) - frame[..., 2] > 50
    seconds = int(time.monotonic() - STARTED)
    return min(1.0, seconds / 10) if red.any() else 0.0
