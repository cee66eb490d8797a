"""The error of input that cannot be used."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class InputError(ValueError):
    """Input of a command cannot be used; the message says what, and what to do."""


@contextmanager
def as_input_error(*more: type[Exception]) -> Iterator[None]:
    """Raise a ValueError of the block, or another one of these errors, as an InputError with the same message."""
    try:
        yield
    except (ValueError, *more) as error:
        raise InputError(str(error)) from error


def check_values(name: str, values: Sequence[object], *, may_be_empty: bool = False) -> None:
    """Raise an InputError if a flag that takes several values has none, or the same one twice."""
    if not values and not may_be_empty:
        raise InputError(f"`{name}` must have at least one value. Received none. Leave the flag out.")
    if len(set(values)) < len(values):
        raise InputError(f"Each `{name}` must be a different one. Received {', '.join(map(repr, values))}.")
