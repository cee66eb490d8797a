"""A copy of the package in which one file differs: what a change of one place reaches."""

import os
import shutil
from pathlib import Path

import vlmrm_gym

PACKAGE = Path(vlmrm_gym.__file__).parent


def change_package(folder: Path, file: str, before: str, lines: str) -> None:
    """Link all files of the package from a folder, but one, which has new lines before those that begin so."""
    copy, source = folder / "vlmrm_gym", (PACKAGE / file).read_text()
    shutil.copytree(PACKAGE, copy, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__"))
    assert source.count(before) == 1
    (copy / file).unlink()
    (copy / file).write_text(source.replace(before, lines + before))
