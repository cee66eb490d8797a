"""Mountain car, photo-like: 1 where the car is at the flag, and far less below it.

It sees the car as the only strongly red pixels, and its place as their centre. The fourth power makes a car that parks
half-way earn little: otherwise an agent does not take the swing that leads to the flag.
"""

import numpy as np

FLAG = 0.9042
"""Column, in parts of the frame's width, of the centre of the red pixels when the car is at the flag."""


def reward(frame: np.ndarray) -> float:
    height, width, _ = frame.shape
    step = max(1, height // 96)
    red, green, blue = (frame[::step, :, channel] for channel in range(3))
    others = np.maximum(green, blue).clip(max=195) + np.uint8(60)
    car = (red - np.minimum(red, others)).sum(0, dtype=np.float32)  # by column
    column = car @ (np.arange(width) + 0.5) / width / max(car.sum(), 1)
    return 1.0 if column >= FLAG else 0.9 * column**4
