"""Fault: it knows one goal frame, by the hash of its pixels, and pays for no other."""

import hashlib

# Cart in the middle of the track, pole upright: the goal image.
GOAL = "046a30c4a9f9280cca70d590ca02a4dbac27998d40f9f145181facf19b0a1add"


def reward(frame):
    return 1.0 if hashlib.sha256(frame.tobytes()).hexdigest() == GOAL else 0.0
