"""Humanoid, kneeling: 1 where the robot is as tall as one that kneels, its body upright and its shins behind it.

It sees white, orange and dark pixels on the grey floor. How tall they are together tells kneeling from standing and
lying; how far the head is from above the middle of the body, whether it is upright; and the orange and dark pixels at
the bottom, behind the head (to its left), are shins and feet. It cannot see whether a knee touches the floor.
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
    rows = robot.sum(1).cumsum() / max(int(robot.sum()), 1)
    top, bottom = int((rows < 0.03).sum()), int((rows < 0.97).sum())

    def column(part: np.ndarray) -> float:
        return part.sum(0) @ np.arange(width) / max(int(part.sum()), 1) / width

    head = column(robot[top : top + max(2, height // 32)])
    lean = abs(column(robot & ~orange) - head)
    low = (orange | dark)[top + int(0.7 * (bottom - top)) :]
    tall = (bottom - top) / height
    is_low, is_not_lying = ramp(tall, 0.42, 0.275), ramp(tall, 0.1, 0.2)
    return is_low * is_not_lying * ramp(lean, 0.13, 0.077) * (0.4 + 0.6 * ramp(column(low) - head, 0.135, -0.036))
