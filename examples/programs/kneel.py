"""Humanoid, kneeling, seen from its right: 1 where its shins lie on the floor behind the knees and its body is upright.

It needs a camera that follows the torso, and frames of 128 x 128 pixels:

    --camera "{trackbodyid: torso, distance: 2.3, elevation: -20, azimuth: 90}"

The floor is grey, and the robot is not: its shins and forearms are orange, its feet, hands and joints dark, the rest
white. Six lengths, in parts of the frame's height, are compared with limits, and each gets a grade from 0 to 1. The
reward is 1 if all grades are 1, else at most 0.9: it falls with their mean and their product.

The limits were chosen on 8,100 drawn states, to pay for most that succeed and for few that fail, in favour of the poses
that the verification calls the goal. It does not see a far knee that is a hand's breadth above the floor.
"""

import numpy as np


def grade(value: float, none: float, full: float) -> float:
    return min(max((value - none) / (full - none), 0.0), 1.0)


def column(part: np.ndarray) -> float:
    """The mean column of some pixels."""
    return part.sum(0) @ np.arange(part.shape[1]) / max(int(part.sum()), 1)


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
    above = bottom - body.sum(1) @ np.arange(len(body)) / body.sum()  # mean height of what is not orange
    middle = body[top + int(0.5 * tall) : top + int(0.75 * tall) + 1]
    lean = (column(white[top : top + size // 16]) - column(middle)) / tall  # of the head, to the front

    legs = slice(max(0, bottom - size * 17 // 128), bottom + 1)
    thighs = white[legs] if white[legs].any() else white  # standing: none is so low
    behind = column(thighs) - column(dark[legs])  # feet
    gap = np.where(robot[legs].any(0), robot[legs][::-1].argmax(0), size)  # between the lowest row and each column
    on_floor = np.flatnonzero(gap <= size * 6 // 128)
    knee, long = on_floor[-1], len(on_floor) / size
    ahead = orange[max(0, bottom - size * 30 // 128) : bottom + 1, knee + 1 :].sum() / size

    grades = np.array(
        [
            grade(tall / size, 0.35, 0.48),  # lying: less
            grade(above / size, 0.52, 0.343),  # standing: more
            min(grade(lean, -0.5, -0.08), grade(lean, 0.6, 0.25)),
            grade(behind / size, -0.15, 0.069),
            min(grade(long, 0, 0.1), grade(long, 0.6, 0.29)),  # the shins
            grade(ahead, 2, 0.35),  # shins or forearms in front of the knees
        ]
    )
    return 1.0 if grades.min() == 1 else float(0.9 * (0.4 * grades.mean() + 0.6 * grades.prod()))
