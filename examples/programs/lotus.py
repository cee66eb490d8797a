"""Humanoid, lotus position: 1 where the robot is as low as one that sits, its body upright and its legs folded.

It sees white, orange and dark pixels on the grey floor. How tall they are together tells sitting from standing and
lying; how far the head is from above the middle of the body, whether it is upright; and little orange, whether the
shins are folded away under the thighs. It cannot see how far the knees are turned outwards.
"""

import numpy as np


def ramp(value: float, none: float, full: float) -> float:
    return min(max((value - none) / (full - none), 0.0), 1.0)


def reward(frame: np.ndarray) -> float:
    step = max(1, len(frame) // 160)
    frame = frame[::step, ::step]
    height, width, _ = frame.shape
    pixels = frame[int(0.4 * height) :].astype(np.int16)  # above are the horizon and the sky
    red, blue = pixels[..., 0], pixels[..., 2]
    orange, dark = red - blue > 60, pixels.max(-1) < 75
    robot = orange | dark | ((pixels.min(-1) > 165) & (blue >= red - 4))
    count = max(int(robot.sum()), 1)
    rows = robot.sum(1).cumsum() / count
    top, bottom = int((rows < 0.03).sum()), int((rows < 0.97).sum())

    def column(part: np.ndarray) -> float:
        return part.sum(0) @ np.arange(width) / max(int(part.sum()), 1) / width

    lean = abs(column(robot & ~orange) - column(robot[top : top + max(2, height // 32)]) - 0.011)
    tall, shins = (bottom - top) / height, int(orange.sum()) / count
    is_low, is_not_lying = ramp(tall, 0.364, 0.236), ramp(tall, 0.08, 0.163)
    return is_low * is_not_lying * ramp(lean, 0.083, 0.046) * (0.4 + 0.6 * ramp(shins, 0.279, 0.235))
