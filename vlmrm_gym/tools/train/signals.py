"""Ctrl-C and SIGTERM during training."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tqdm import tqdm


class Interrupted(Exception):
    """A signal, given by its number, has ended the training after a checkpoint was written."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived while not deferred."""

    signal = signal.SIGTERM


@contextmanager
def _handling(numbers: tuple[int, ...], handler: Callable[[int, Any], None]) -> Iterator[None]:
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

    return _handling((signal.SIGTERM,), terminate)


class SignalGuard:
    """Records the first Ctrl-C or SIGTERM, so that training ends between rollouts; a second one ends it at once."""

    def __init__(self) -> None:
        self.received: int | None = None

    def active(self) -> AbstractContextManager[None]:
        """Handle the signals in this block; does nothing outside the main thread."""
        return _handling((signal.SIGINT, signal.SIGTERM), self._receive)

    def _receive(self, number: int, frame: Any) -> None:
        if self.received is not None:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        self.received = number
        tqdm.write(
            "Interrupted: writing a checkpoint when the episodes have ended. Repeat to stop at once.", file=sys.stderr
        )
