"""Ctrl-C and SIGTERM during training."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm


class Interrupted(Exception):
    """A signal has ended the training, after a checkpoint was written.

    Args:
        signal: The number of the signal.
    """

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived while not deferred."""

    signal = signal.SIGTERM


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise `Terminated` when SIGTERM arrives in this block; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: Any) -> None:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class SignalGuard:
    """Records the first Ctrl-C or SIGTERM, so that training ends between rollouts; a second one ends it at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        """The number of the signal, if one has been received."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Handle the signals in this block; does nothing outside the main thread, which receives all signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def receive(number: int, frame: Any) -> None:
            self.received = number
            tqdm.write("Interrupted: writing a checkpoint after this rollout. Repeat to stop at once.", file=sys.stderr)
            restore()

        def restore() -> None:
            for number, handler in previous.items():
                signal.signal(number, handler)

        for number in previous:
            signal.signal(number, receive)
        try:
            yield
        finally:
            restore()
