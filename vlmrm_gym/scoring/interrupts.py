"""Control over where exceptions from signal handlers are raised in the main thread."""

import _signal  # pyright: ignore[reportMissingImports]  (what `signal` wraps in enums, at ten times the cost)
import signal
import threading
from _thread import interrupt_main
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = tuple(map(int, signal.valid_signals()))


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer Python's signal handlers (Ctrl-C, alarms, any other) until after this block, because they may raise.

    For non-blocking bookkeeping. Masking signals does not work: other threads receive them, and Python still calls the
    handlers in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, Any] = {
        number: handler for number in _SIGNALS if callable(handler := _signal.getsignal(number))
    }
    received: list[Any] = []
    deferring = True

    def record(number: int, frame: FrameType | None) -> None:
        if deferring:
            received.append(number)
        else:  # another handler raised before this one was restored
            handlers[number](number, frame)

    try:
        for number in handlers:
            _signal.signal(number, record)
        yield
    finally:
        deferring = False
        try:
            for number, handler in handlers.items():
                _signal.signal(number, handler)
        finally:
            # In one call, with no Python code in between: a handler that raises must not keep others from being called.
            deque(map(interrupt_main, received), maxlen=0)


class OneShotEvent:
    """A `threading.Event` whose `wait` is safe to leave by an exception at any time.

    `threading.Event` takes a lock internally and would keep it if a signal handler raised at that moment.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[threading.Lock] = []

    def is_set(self) -> bool:
        """Whether `set` has been called."""
        return self._is_set

    def set(self) -> None:
        """Wake all waiters. Call once."""
        self._is_set = True
        for waiter in self._waiters:
            waiter.release()

    def wait(self) -> None:
        """Wait until it is set."""
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)  # before the check: `set` either sees the waiter or has been called
        if not self._is_set:
            waiter.acquire()
