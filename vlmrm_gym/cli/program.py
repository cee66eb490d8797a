"""The command `vlmrm-gym program`: what is done with programs, each of which is a command of its own.

Such a command is a module `vlmrm_gym.cli.program_NAME` with a function `main`, and a line below.
"""

import importlib
from collections.abc import Sequence

from vlmrm_gym.errors import InputError
from vlmrm_gym.terminal import say
from vlmrm_gym.validation import short_repr

COMMANDS = {
    "write": "have a vision-language model write a program, and verify it",
    "verify": "see whether experts complete a program, and nothing else",
}
"""What each command does, in a line."""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        lines = [f"  {name:10}{text}" for name, text in COMMANDS.items()]
        say("\n".join(["usage: vlmrm-gym program COMMAND ...", "", *lines]))
    elif name in COMMANDS:
        importlib.import_module(f"vlmrm_gym.cli.program_{name}").main(rest)
    else:
        raise InputError(f"`program` must be followed by {', '.join(COMMANDS)}. Received {short_repr(name)}.")
