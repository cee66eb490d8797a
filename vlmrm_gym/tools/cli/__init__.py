"""The command line `vlmrm-gym`: a table of commands, each of which is one file of this folder.

A command is a module `vlmrm_gym.tools.cli.NAME` with a function `main`, from arguments without the name, and a line
below.
"""

import difflib
import errno
import importlib
import os
import sys
from collections.abc import Sequence

from vlmrm_gym._util import __version__
from vlmrm_gym._util.errors import InputError, say
from vlmrm_gym._util.validation import short_repr

COMMANDS = {
    "check": "measure a reward before training, and find the failures that it pays most",
    "train": "train an agent with Stable-Baselines3",
    "evaluate": "measure a trained agent: success, returns and a video",
    "score": "score every frame of videos, pictures or a dataset",
    "dataset": "record rollouts with their rewards, as a Minari dataset",
    "label": "ask a labeler which of two segments of a dataset is closer to the goal",
    "fit": "make a reward of a labeler's answers",
    "push": "upload a saved reward, or an agent, to Hugging Face's hub",
    "program": "verify a program before it is a reward",
    "tasks": "list the registered IDs and their prompts, with pictures",
}
"""What each command does, in a line."""

HABITS = """\
An ID or a file comes first:      vlmrm-gym check VLMRM/CartPole-v1 --prompt "an upright pole"
A flag has one value, or several: --alpha 0 0.5 1, or --alpha 0 --alpha 0.5 --alpha 1
The flags of a command:           vlmrm-gym COMMAND --help"""
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
_DISK_ERRORS += (errno.EISDIR, errno.ENOTDIR, errno.EEXIST)
"""The disk is full, read-only or fails, or has a folder in the place of a file."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command.

    Exit codes: 2 for bad input, 1 for a failure or a program that is not accepted, 130 after Ctrl-C, 143 after SIGTERM.
    """
    if arguments is None:
        arguments = sys.argv[1:]
        sys.path.append("")  # modules that settings name may lie in the current folder
    try:
        _choose(*(arguments or ["--help"]))
        sys.stdout.flush()
    except BrokenPipeError:
        if not _is_broken(sys.stdout.fileno()):
            raise  # of another pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _is_broken(descriptor: int) -> bool:
    """Tell whether nobody reads a pipe any more, as after `| head`."""
    if sys.platform == "win32":
        return True
    import select

    waiting = select.poll()
    waiting.register(descriptor, 0)
    return bool(waiting.poll(0))


def _choose(name: str, *rest: str) -> None:
    if name == "--version":
        say(f"vlmrm-gym {__version__}")
    elif name in ("-h", "--help"):
        lines = [f"  {command:10}{text}" for command, text in COMMANDS.items()]
        say("\n".join(["usage: vlmrm-gym COMMAND ...", "       vlmrm-gym --version", "", *lines, "", HABITS]))
    elif name in COMMANDS:
        _run(name, rest)
    else:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        meant = f"Did you mean {near[0]!r}?" if near else "See vlmrm-gym --help."
        _fail(f"The command must be one of {', '.join(COMMANDS)}. Received {short_repr(name)}. {meant}", 2)


def _run(name: str, arguments: Sequence[str]) -> None:
    try:
        command = importlib.import_module(f"vlmrm_gym.tools.cli.{name}")
        from vlmrm_gym.tools.train.signals import Terminated, sigterm_raises
    except ImportError as error:
        sys.exit(f'The command line needs more than the package alone: pip install "vlmrm-gym[train]" ({error}).')
    try:
        with sigterm_raises():
            command.main(arguments)
    except InputError as error:
        _fail(error, 2)
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        _fail(f"What was to be written could not be: {error}", 1)
    except Terminated:
        _fail("Terminated.", 143)
    except KeyboardInterrupt:
        _fail("Interrupted.", 130)


def _fail(message: object, code: int) -> None:
    say(message, error=True)
    sys.exit(code)
