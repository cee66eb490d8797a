"""Errors of input, what is closed after an error, and text for the terminal."""

import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Protocol


class InputError(ValueError):
    """Input of a command cannot be used; the message says what, and what to do."""


@contextmanager
def as_input_error(*more: type[Exception]) -> Iterator[None]:
    """Raise a ValueError of the block, or another one of these errors, as an InputError with the same message."""
    try:
        yield
    except (ValueError, *more) as error:
        raise InputError(str(error)) from error


def check_values(name: str, values: Sequence[object]) -> None:
    """Raise an InputError if a flag that takes several values has the same one twice."""
    if len({one if isinstance(one, str | float) else id(one) for one in values}) < len(values):
        raise InputError(f"Each `{name}` must be a different one. Received {', '.join(map(repr, values))}.")


class Closable(Protocol):
    """Has a `close` method, as environments do."""

    def close(self) -> object:
        """Free all resources."""
        ...


@contextmanager
def close_on_error(resources: Iterable[Closable]) -> Iterator[None]:
    """Close resources if the block raises; its exception is raised, whatever closing raises. A list may grow in it."""
    try:
        yield
    except BaseException:
        for resource in resources:
            with suppress(Exception):
                resource.close()
        raise


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""All control characters but tabs and line feeds; and what file names have for bytes that are not text."""


def printable(text: str, encoding: str = "utf-8") -> str:
    r"""The text with control characters, and what an encoding lacks, written out, such as \x1b.

    So it cannot steer a terminal, and printing it does not fail.

    >>> print(printable("a \x1b[31mred\x1b[0m pole"))
    a \x1b[31mred\x1b[0m pole
    >>> print(printable("5 °", "ascii"))
    5 \xb0
    """
    text = _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def quote(text: str) -> str:
    """A stranger's words for a message: in quotation marks, on one line, at most 500 characters of them."""
    words = " ".join(printable(text[:500]).split()).replace('"', "'")
    return f'"{words}{"..." if len(text) > 500 else ""}"'


def say(text: object, *, error: bool = False) -> None:
    """Print a line as `printable` makes it, to standard error if it is an `error`. The commands print with this."""
    stream = sys.stderr if error else sys.stdout
    print(printable(str(text), stream.encoding or "utf-8"), file=stream)


@cache
def say_once(text: str) -> None:
    """Print a line to standard error, the first time in this process."""
    say(text, error=True)


@contextmanager
def said_warnings() -> Iterator[None]:
    """Print each UserWarning of a block that succeeds, once, to standard error."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        yield
    for message in dict.fromkeys(str(warning.message) for warning in warned):
        say(message, error=True)
