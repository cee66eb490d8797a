"""Atomic file writes."""

import os
from collections.abc import Callable
from pathlib import Path


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically: after a crash or on a full disk, the previous version remains.

    Args:
        path: The file.
        write: Called with the path to write to.

    Raises:
        OSError: It could not be written.
    """
    unfinished = path.with_name(f"{path.stem}.partial{path.suffix}")
    try:
        write(unfinished)
        sync(unfinished)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
