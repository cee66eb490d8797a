"""Ctrl-C and SIGTERM during training."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any


class Interrupted(Exception):
    """A signal, given by its number, has ended the training after a checkpoint was written."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived while not deferred."""

    signal = signal.SIGTERM


@contextmanager
def handling(handler: Callable[[int, Any], None], *numbers: int) -> Iterator[None]:
    """Handle signals in this block; does nothing outside the main thread, which receives all signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, own in previous.items():
            signal.signal(number, own)


def sigterm_raises() -> AbstractContextManager[None]:
    """Raise `Terminated` when SIGTERM arrives in this block; does nothing outside the main thread."""

    def terminate(number: int, frame: Any) -> None:
        raise Terminated

    return handling(terminate, signal.SIGTERM)
