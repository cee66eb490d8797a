"""Cart-pole: at least 1 while the pole is within 12 degrees of upright and the cart on its track, else at most 0.5.

The less the pole leans, and the nearer the cart is to the middle, the more: up to 2.

It sees the cart as the black pixels of a row below the pole, and the pole as the brown pixels: the direction from the
cart's axle to their centre is the pole's. The frame ends where the track does: it cuts a cart at an end in half. A pole
that is cut by more than a third leans out of the frame. Lengths are in parts of the frame's width, which stands for 1.5
times its height.
"""

import numpy as np

CART_ROW, AXLE_ROW = 0.77, 0.731
CART_WIDTH = 1 / 12
POLE = 0.54
"""Brown of the whole pole: mean over the frame, of 255."""
FALLEN, END = 12.0, 0.995
"""Degrees from upright; parts of the way from the middle of the track to an end."""


def reward(frame: np.ndarray) -> float:
    height, width, _ = frame.shape
    columns = (np.arange(width) + 0.5) / width
    black = 1 - frame[int(CART_ROW * height), :, 0] / 255
    visible, cart = black.mean(), columns @ black / max(black.sum(), 1e-6)
    if visible < 0.98 * CART_WIDTH:  # an edge of the frame cuts it
        cart = visible - CART_WIDTH / 2 if cart < 0.5 else 1 - visible + CART_WIDTH / 2

    step = max(1, height // 96)  # these rows are enough for the angle
    red, blue = frame[::step, :, 0], frame[::step, :, 2]
    brown = (red - np.minimum(red, blue)).astype(np.float32)  # 0 where it is white, grey or black
    by_column, by_row = brown.sum(0), brown.sum(1)
    total = max(by_row.sum(), 1)
    right = columns @ by_column / total - cart
    up = (AXLE_ROW - (np.arange(0, height, step) + 0.5) @ by_row / height / total) / 1.5
    angle = np.degrees(np.abs(np.arctan2(right, up)))

    is_whole, off = brown.mean() > POLE * 2 / 3, abs(2 * cart - 1)
    if angle <= FALLEN and is_whole and off < END:
        return 1 + (1 - angle / FALLEN) * (1 - off)
    return 0.5 * (1 - max(angle, FALLEN) / 180)
