"""Checks of a reward: what an agent that maximises it would find."""


class InputError(ValueError):
    """Input of a command cannot be used; the message says what, and what to do."""
