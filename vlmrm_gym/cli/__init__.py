"""The command line: `vlmrm-gym check`, `train`, `evaluate`, `score`, `dataset` and `tasks`."""

import errno
import sys
from collections.abc import Sequence
from typing import Annotated, Any

try:
    import tyro

    from vlmrm_gym.cli import check, dataset, evaluate, score, tasks, train
    from vlmrm_gym.errors import InputError
    from vlmrm_gym.training.config_file import ConfigError
    from vlmrm_gym.training.run_folder import RunError
    from vlmrm_gym.training.signals import Terminated, sigterm_raises
except ImportError as error:
    sys.exit(f'The command line needs more than the package alone: pip install "vlmrm-gym[train]" ({error}).')

from vlmrm_gym.terminal import say


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command.

    Exit codes: 2 for bad input, 1 for a failure, 130 after Ctrl-C, 143 after SIGTERM.
    """
    if arguments is None:
        arguments = sys.argv[1:]
        sys.path.append("")  # modules that settings name may lie in the current folder
    arguments, words = train.without_aliases(arguments)
    commands: Any = Annotated[check.Check, tyro.conf.subcommand("check")]
    commands |= Annotated[train.Train, tyro.conf.subcommand("train")]
    commands |= Annotated[evaluate.Evaluate, tyro.conf.subcommand("evaluate")]
    commands |= Annotated[score.Score, tyro.conf.subcommand("score")]
    commands |= Annotated[dataset.Dataset, tyro.conf.subcommand("dataset")]
    commands |= Annotated[tasks.Tasks, tyro.conf.subcommand("tasks")]
    command = tyro.cli(commands, args=arguments, prog="vlmrm-gym", description=__doc__)
    try:
        with sigterm_raises():
            if isinstance(command, train.Train):
                train.train(command, arguments[1:], words)
            elif isinstance(command, evaluate.Evaluate):
                evaluate.evaluate(command)
            elif isinstance(command, check.Check):
                check.check(command)
            elif isinstance(command, score.Score):
                score.score(command)
            elif isinstance(command, dataset.Dataset):
                dataset.record_dataset(command)
            else:
                tasks.list_tasks(command)
    except (ConfigError, InputError, RunError) as error:
        say(error, error=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        say(f"What was to be written could not be: {error}", error=True)
        sys.exit(1)
    except Terminated:
        say("Terminated.", error=True)
        sys.exit(143)
    except KeyboardInterrupt:
        say("Interrupted.", error=True)
        sys.exit(130)


_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
"""The disk is full, read-only or fails."""
