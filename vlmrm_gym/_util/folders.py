"""Folders that commands write to."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from vlmrm_gym.errors import InputError


def check_folder(folder: Path, *, overwrite: bool = True, name: str = "out") -> None:
    """Raise an InputError if a folder is a file, or exists without `overwrite`; `name` is the parameter's."""
    exists = os.path.exists(folder)  # unlike `Path.exists`, False for a name that is too long
    if exists and not folder.is_dir():
        raise InputError(f"`{name}` must be a folder. {folder} is a file. Choose another.")
    if exists and not overwrite:
        raise InputError(f"The folder {folder} exists. Pass --overwrite to replace its results, or another --{name}.")


def make_folder(folder: Path, *, name: str = "out") -> None:
    """Make a folder, if there is none. An InputError if it is a file, or files cannot be written to it."""
    check_folder(folder, name=name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"The folder {folder} cannot be written to: {error.strerror}. Choose another --{name}."
        ) from error


@contextmanager
def output_folder(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """Make the folder of a command's results, see `check_folder`. If the command fails, an empty one is removed."""
    check_folder(folder, overwrite=overwrite)
    make_folder(folder)
    try:
        yield folder
    except BaseException:
        with suppress(OSError):
            folder.rmdir()
        raise
