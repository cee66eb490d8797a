"""Files that are written whole or not at all, and folders of output."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from vlmrm_gym._util.errors import InputError


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically: after a crash or on a full disk, the previous version remains.

    `write` is called with the path to write to. An OSError names the file.
    """
    unfinished = path.with_name(f"{path.stem}.partial{path.suffix}")
    try:
        with naming(path):
            write(unfinished)
            sync(unfinished)
            unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def atomic_write_text(path: Path, text: str) -> None:
    """Write a string as UTF-8, as `atomic_write` does; lone surrogates are escaped."""
    atomic_write(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8", errors="backslashreplace"))


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in OSErrors that name none, such as those of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def check_space(folder: Path, size: int) -> None:
    """Raise an OSError unless a folder has room for `size` bytes: TensorBoard's writer and HDF5 cannot recover."""
    with naming(folder), TemporaryFile(dir=folder, buffering=0) as file:
        while size > 0:
            size -= file.write(bytes(min(size, 2**20)))


def sync(path: Path) -> None:
    """Flush a file or folder to the disk; on Windows, which opens no folder, a file."""
    is_folder = path.is_dir()
    if is_folder and sys.platform == "win32":
        return
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)  # Windows flushes what may be written
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def refuse_links(folder: Path) -> None:
    """Raise an InputError if a folder has links in it, which may lead anywhere."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            raise InputError(
                f"{folder} must have no links. Received {path}. A dataset in Hugging Face's cache is made of them: "
                "fetch it by `hf download ORGANISATION/NAME --repo-type dataset --local-dir FOLDER`."
            )


def check_folder(folder: Path, *, overwrite: bool = True, name: str = "out") -> None:
    """Raise an InputError if a folder is a file, or exists without `overwrite`; `name` is the parameter's."""
    exists = os.path.exists(folder)  # unlike `Path.exists`, False for a name that is too long
    if exists and not folder.is_dir():
        raise InputError(f"`{name}` must be a folder. {folder} is a file. Choose another.")
    if exists and not overwrite:
        raise InputError(f"The folder {folder} exists. Pass --overwrite to replace its results, or another --{name}.")


def make_folder(folder: Path, *, overwrite: bool = True, name: str = "out") -> None:
    """Make a folder, if there is none; see `check_folder`. An InputError if files cannot be written to it."""
    check_folder(folder, overwrite=overwrite, name=name)
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
    make_folder(folder, overwrite=overwrite)
    try:
        yield folder
    except BaseException:
        with suppress(OSError):
            folder.rmdir()
        raise
