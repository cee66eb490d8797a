"""Opens and reads the files of strangers: regular files, which take no more memory than their size.

What is wrong with a file is an `InputError` that names it.
"""

import io
import json
import math
import os
import stat
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.validation import short_repr, truncate

MAX_JSON = 2**22
"""Bytes of a JSON file, at most."""
MAX_PIXELS = 2**25
"""Of a picture, or of one of a video: 8K, and some 100 MB as RGB."""
_MAX_DEPTH = 32
"""Of nested lists and mappings."""


@contextmanager
def reading(path: str | Path, *errors: type[Exception]) -> Iterator[None]:
    """Raise the errors of a damaged file as an InputError: that it cannot be read, and the last line of the reason."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, *errors) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = f"it has no {reason}" if isinstance(error, KeyError) else reason
        reason = next(iter(reversed(reason.strip().splitlines())), type(error).__name__)
        raise InputError(f"{path} cannot be read: {truncate(reason)}") from error


def check_file(path: str | Path) -> int:
    """Check that a file is regular, and return its size in bytes."""
    with reading(path):
        return _check(path, os.stat(path))


def open_file(path: str | Path, most: int | None = None) -> BinaryIO:
    """Open a regular file of at most `most` bytes, None: any number. A pipe is not waited for."""
    flags = os.O_BINARY if sys.platform == "win32" else os.O_NONBLOCK | os.O_NOCTTY
    with reading(path):
        descriptor = os.open(path, os.O_RDONLY | flags)
        try:
            _check(path, os.fstat(descriptor), most)
        except InputError:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "rb")


def _check(path: str | Path, status: os.stat_result, most: int | None = None) -> int:
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(status.st_mode), "a device")
        raise InputError(f"{path} must be a regular file. Received {kind}.")
    if most is not None and status.st_size > most:
        raise InputError(f"{path} must have at most {most:,} bytes. Received {status.st_size:,}.")
    return status.st_size


def read_file(path: str | Path, most: int) -> bytes:
    """Read the content of a regular file of at most `most` bytes."""
    with open_file(path, most) as file, reading(path):
        return file.read(most)


def read_text(path: str | Path, most: int) -> str:
    """Read the text of a regular file, in UTF-8, of at most `most` bytes."""
    content = read_file(path, most)
    with reading(path):
        return content.decode("utf-8-sig")  # spreadsheets write a byte-order mark


def read_json(path: str | Path) -> Any:
    """Read the value of a JSON file of at most `MAX_JSON` bytes and 32 levels."""
    content = read_file(path, MAX_JSON)
    with reading(path):
        return parse_json(content)


def parse_json(content: str | bytes) -> Any:
    """Parse a JSON text. A ValueError if it is none, or nested too deeply."""
    too_deep = ValueError(f"JSON may have at most {_MAX_DEPTH} levels of lists and mappings. Received more.")
    try:
        value = json.loads(content)
    except RecursionError:
        raise too_deep from None
    level = [value]
    for _ in range(_MAX_DEPTH + 1):
        containers = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [*chain.from_iterable(containers)]
    if level:
        raise too_deep
    return value


def check_archive(file: Path | IO[bytes], size: int) -> None:
    """Raise a ValueError unless a zip file of `size` bytes is as we write it: it takes no more memory than that."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"its entries must not be compressed. Received {short_repr(entry.filename)}.")
        if sum(entry.file_size for entry in entries) > size:
            raise ValueError("its entries must not overlap. Received more bytes than the file has.")
        for entry in entries:
            if entry.filename.endswith((".pth", ".npz")):
                with archive.open(entry) as inner:
                    check_archive(inner, entry.file_size)


def read_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an NPZ file by their names: uncompressed, without objects, and no more than the file has."""
    with open_file(path) as file, reading(path, zipfile.BadZipFile, NotImplementedError, EOFError):
        return unpack_arrays(file)


def unpack_arrays(file: IO[bytes]) -> dict[str, NDArray[Any]]:
    """As `read_arrays`, of an open file; raises what `zipfile` does, and ValueErrors."""
    check_archive(file, file.seek(0, io.SEEK_END))
    with zipfile.ZipFile(file) as archive:
        return {name.removesuffix(".npy"): _read_array(archive.read(name)) for name in archive.namelist()}


def _read_array(content: bytes) -> NDArray[Any]:
    start = io.BytesIO(content)
    version = np.lib.format.read_magic(start)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(start)
    if math.prod(shape) * dtype.itemsize != len(content) - start.tell():
        raise ValueError(f"an array's header says {dtype} {shape}, which is not what follows.")
    return np.load(io.BytesIO(content), allow_pickle=False)
