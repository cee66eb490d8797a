"""Humanoid, lotus position, seen from the front: 1 where it sits upright on its folded legs, its knees wide apart.

It needs a camera that follows the torso, and frames of 128 x 128 pixels:

    --camera "{trackbodyid: torso, distance: 2.3, elevation: -20, azimuth: 180}"

The floor is grey, and the robot is not: its shins and forearms are orange, its feet, hands and joints dark, the rest
white. Six lengths and areas, in parts of the frame's height, are compared with limits, and each gets a grade from 0 to
1. The reward is 1 if all grades are 1, else at most 0.9: it falls with their mean and their product.

The limits were chosen on 8,100 drawn states, to pay for most that succeed and for few that fail, in favour of the poses
that the verification calls the goal. It hardly sees by how much a knee, or the pelvis, is too high.
"""

import numpy as np


def grade(value: float, none: float, full: float) -> float:
    return min(max((value - none) / (full - none), 0.0), 1.0)


def mean(counts: np.ndarray) -> float:
    """The mean position of the pixels that are counted by row or column."""
    return float(counts @ np.arange(len(counts))) / max(int(counts.sum()), 1)


def reward(frame: np.ndarray) -> float:
    size = len(frame)
    frame = frame[int(0.12 * size) :]  # above are the horizon and the sky
    red, green, blue = (frame[..., channel].astype(np.int16) for channel in range(3))
    orange = red - blue > 60
    dark = np.maximum(np.maximum(red, green), blue) < 75
    white = (np.minimum(np.minimum(red, green), blue) > 160) & (blue >= red - 4)
    robot, body = orange | dark | white, dark | white

    filled, whitish = np.flatnonzero(robot.any(1)), np.flatnonzero(white.sum(1) >= 2)
    if len(whitish) == 0 or filled[-1] - whitish[0] < 0.1 * size:
        return 0.0
    top, bottom = whitish[0], filled[-1]  # rows of the head's top and of the lowest pixel
    tall = bottom - top
    middle = mean(body[top + int(0.4 * tall) : top + int(0.65 * tall) + 1].sum(0))  # column of the waist

    near = slice(max(0, int(middle) - size * 6 // 128), int(middle) + size * 6 // 128 + 1)
    above = bottom - mean(white[:, near].sum(1))  # mean height of head, chest and pelvis
    thighs = np.flatnonzero(white[max(0, bottom - size * 20 // 128) : bottom + 1].any(0))
    apart = np.ptp(thighs) if len(thighs) else 0
    row = top + 3 * tall // 4
    wide = robot[row : row + 4].sum() / 4  # at three quarters of the way down
    columns = np.arange(robot.shape[1]) - middle
    low = dark[max(0, bottom - size * 26 // 128) : bottom + 1].sum(0)  # feet, and the caps of the knees
    spread = np.sqrt(low @ columns**2 / max(int(low.sum()), 1))
    feet = dark[max(0, bottom - size * 18 // 128) : bottom + 1, np.abs(columns) <= 0.1 * size].sum() / size

    grades = np.array(
        [
            grade(tall / size, 0.36, 0.46),  # lying: less
            grade(above / size, 0.5, 0.315),  # standing: more
            grade(apart / size, -0.2, 0.35),
            grade(wide / size, 0, 0.18),
            grade(spread / size, 0.4, 0.13),
            grade(feet, -0.5, 0.57),
        ]
    )
    return 1.0 if grades.min() == 1 else float(0.9 * (0.4 * grades.mean() + 0.6 * grades.prod()))
