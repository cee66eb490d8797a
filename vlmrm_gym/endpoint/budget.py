"""A budget of requests and tokens, which threads share."""

import math
import threading


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
        self._calls = self._tokens = self._under_way = 0
        self._largest = 0
        """The most tokens that a question took."""

    def resume(self, calls: int, tokens: int) -> None:
        """Count what was spent before, by this process or another."""
        with self._lock:
            self._calls, self._tokens = max(self._calls, calls), max(self._tokens, tokens)

    def begin(self, calls: int) -> bool:
        """Set aside the calls of a question, and as many tokens as the largest took; False if that is too much."""
        with self._lock:
            tokens = self._tokens + max(1, (self._under_way + 1) * self._largest)
            fits = self._calls + calls <= self._max_calls and tokens <= self._max_tokens
            if fits:
                self._calls += calls
                self._under_way += 1
            return fits

    def lend(self, calls: int) -> int:
        """Set further calls aside: as many as there are, at most so many."""
        with self._lock:
            lent = int(min(calls, max(0, self._max_calls - self._calls)))
            self._calls += lent
            return lent

    def give_back(self, calls: int) -> None:
        """Free calls that were set aside, and not sent."""
        with self._lock:
            self._calls -= calls

    def end(self, calls: int, tokens: int) -> None:
        """End a question that took some tokens, and did not need some of its calls."""
        with self._lock:
            self._calls -= calls
            self._tokens += tokens
            self._under_way -= 1
            self._largest = max(self._largest, tokens)
