"""Fault: it counts the frames that it is shown, and never looks at them."""


class PoleKeptUp:
    NEEDED = 50

    def reset(self):
        self.frames = 0

    def __call__(self, frame):
        self.frames += 1
        return min(1.0, self.frames / self.NEEDED)
