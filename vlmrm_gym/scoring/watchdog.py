"""Detects workers that make no progress."""

from collections.abc import Collection

from vlmrm_gym.scoring.timeouts import Timeouts

_DOING = {"load": "loading the model", "draw": "drawing frames", "encode": "encoding frames"}


class Watchdog:
    """Counts seconds without progress for each stage that has work, and compares them with the limits.

    Args:
        timeouts: The limits.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._limits = {stage: getattr(timeouts, stage) for stage in _DOING}
        self._silent = dict.fromkeys(_DOING, 0.0)
        self.loaded = False
        self.num_sent = self.num_drawn = self.num_answered = 0
        """Batches."""

    def shortest_limit(self) -> float:
        """The shortest limit in seconds; infinity if there is none."""
        return min((limit for limit in self._limits.values() if limit is not None), default=float("inf"))

    def advance(self, seconds: float, progressed: Collection[str] = ()) -> str | None:
        """Account for elapsed time and the stages that made progress; returns a message if a limit is exceeded."""
        working = {
            "load": not self.loaded,
            "draw": self.loaded and self.num_sent > self.num_drawn,
            "encode": self.num_drawn > self.num_answered,
        }
        wrong = None
        for stage, is_working in working.items():
            has_progressed = not is_working or stage in progressed
            self._silent[stage] = 0.0 if has_progressed else self._silent[stage] + seconds
            limit = self._limits[stage]
            if limit is not None and self._silent[stage] > limit:
                wrong = (
                    f"A scoring worker did not respond for {limit:g} seconds ({_DOING[stage]}). If it needs longer, "
                    f'pass worker_timeouts={{"{stage}": seconds}}.'
                )
        return wrong
