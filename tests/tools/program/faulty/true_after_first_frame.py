"""Fault: what is asked is whether anything has moved, which is true of every frame but the first."""

import numpy as np


class PoleUpright:
    def reset(self):
        self.first = None

    def __call__(self, frame):
        if self.first is None:
            self.first = frame.copy()
            return False
        return bool(np.any(frame != self.first))
