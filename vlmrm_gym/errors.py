"""The error of input that cannot be used."""


class InputError(ValueError):
    """Input of a command cannot be used; the message says what, and what to do."""
