"""A budget of requests and tokens, which threads share."""

import math
import threading

from vlmrm_gym.endpoint.spending import SpendingFile


class Budget:
    """Counts what was spent, and what is set aside for questions that are under way.

    Args:
        calls: The most requests; None: any number.
        tokens: The most tokens; None: any number.
    """

    def __init__(self, calls: int | None, tokens: int | None) -> None:
        self._max_calls = math.inf if calls is None else calls
        self._max_tokens = math.inf if tokens is None else tokens
        self._lock = threading.Lock()
        self._file: SpendingFile | None = None
        self._asker = ""
        self._calls = self._tokens = 0
        """Spent by this process."""
        self._under_way = self._set_aside = 0
        """Questions, and the calls that are set aside for them."""
        self._largest = 0
        """The most tokens that a question took."""

    def share(self, file: SpendingFile | None, asker: str = "") -> None:
        """Count what an asker spent of all processes that share a file; None: what this process spent.

        What is under way in other processes does not count yet.
        """
        with self._lock:
            self._file, self._asker = file, asker

    def begin(self, calls: int) -> bool:
        """Set aside the calls of a question, and as many tokens as the largest took; False if that is too much."""
        with self._lock:
            spent_calls, spent_tokens = self._spent()
            tokens = spent_tokens + max(1, (self._under_way + 1) * self._largest)
            fits = spent_calls + self._set_aside + calls <= self._max_calls and tokens <= self._max_tokens
            if fits:
                self._set_aside += calls
                self._under_way += 1
            return fits

    def lend(self, calls: int) -> int:
        """Set further calls aside: as many as there are, at most so many."""
        with self._lock:
            lent = int(min(calls, max(0, self._max_calls - self._spent()[0] - self._set_aside)))
            self._set_aside += lent
            return lent

    def give_back(self, calls: int) -> None:
        """Free calls that were set aside, and not sent."""
        with self._lock:
            self._set_aside -= calls

    def end(self, unneeded: int, calls: int, tokens: int) -> None:
        """End a question that took some calls and tokens, and did not need some of the calls set aside."""
        with self._lock:
            self._set_aside -= unneeded + calls
            self._under_way -= 1
            self._largest = max(self._largest, tokens)
            self._calls, self._tokens = self._calls + calls, self._tokens + tokens
            if self._file is not None:
                self._file.spend(self._asker, calls, tokens)

    def _spent(self) -> tuple[int, int]:
        return (self._calls, self._tokens) if self._file is None else self._file.spent(self._asker)
