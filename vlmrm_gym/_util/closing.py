"""Closes what a function has made if it cannot return it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol


class Closable(Protocol):
    """Has a `close` method, as environments do."""

    def close(self) -> object:
        """Free all resources."""
        ...


@contextmanager
def close_on_error(made: Iterable[Closable]) -> Iterator[None]:
    """Close what has been made if the block raises. Its exception is raised, whatever closing raises.

    `made` is read when the block raises: a list may grow in the block.
    """
    try:
        yield
    except BaseException:
        for one in made:
            with suppress(Exception):
                one.close()
        raise
