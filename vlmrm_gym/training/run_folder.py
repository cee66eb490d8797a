"""The folder of a run: what was asked for, with what it ran, what came of it, and checkpoints to go on from.

config.yaml            the configuration, everything filled in
versions.json          of Python, packages and machine, for every start
metrics.csv            a line for every time that episodes were scored
learning_curve.png     the same, to look at
best.zip, best.json    the policy with the best scored return
checkpoints/<step>/    policy (model.zip), replay buffer and state; of older ones the policy alone
videos/<step>.mp4      the deterministic agent, with its reward drawn in
events.out.tfevents.*  for TensorBoard
"""

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

METRICS: tuple[str, ...] = ("step", "seconds", "episodes", "vlm_return", "task_return", "success_share", "success")
"""The columns of metrics.csv: steps and seconds of training so far; how many episodes were scored, and their means."""

_MANIFEST = "manifest.json"
_KEPT = 2
"""How many checkpoints are kept whole."""


class RunError(ValueError):
    """A run's folder cannot be made, or cannot be used."""


class RunFolder:
    """A run's folder.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """Make a new one.

        Raises:
            RunError: There is one already, or it cannot be made.
        """
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise RunError(
                f"The run's folder {path} exists already. Go on with that run by --resume {path}, or give this one "
                "another name by --run-name."
            ) from None
        except OSError as error:
            raise RunError(f"The run's folder {path} cannot be made: {error}. Choose another --base-path.") from None
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing one.

        Raises:
            RunError: It is no run's folder.
        """
        if not (path / "config.yaml").is_file():
            raise RunError(f"{path} is not the folder of a run: it has no config.yaml.")
        return cls(path)

    @property
    def config_file(self) -> Path:
        """The configuration."""
        return self.path / "config.yaml"

    @property
    def checkpoints(self) -> dict[int, Path]:
        """The folders of all checkpoints, by step, in order."""
        found = self.path.glob("checkpoints/*")
        return dict(sorted((int(folder.name), folder) for folder in found if folder.name.isdecimal()))

    def newest_checkpoint(self) -> Path | None:
        """The checkpoint to go on from; None if the run ended before the first one.

        Raises:
            RunError: It is damaged.
        """
        whole = [folder for folder in self.checkpoints.values() if (folder / _MANIFEST).is_file()]
        if not whole:
            return None
        folder = whole[-1]
        try:
            damaged = [
                name
                for name, digest in json.loads((folder / _MANIFEST).read_text()).items()
                if not (folder / name).is_file() or _digest(folder / name) != digest
            ]
        except (OSError, ValueError, AttributeError):
            damaged = [_MANIFEST]
        if damaged:
            earlier = f"from step {int(whole[-2].name):,}" if len(whole) > 1 else "from the beginning"
            raise RunError(
                f"The checkpoint {folder} is damaged: {', '.join(damaged)} is not what was written. "
                f"Remove that folder to go on {earlier}."
            )
        return folder

    def save_checkpoint(self, step: int, writers: Mapping[str, Callable[[Path], object]]) -> None:
        """Write a checkpoint, whole or not at all, and strip older ones of all but the policy.

        Args:
            step: Its name.
            writers: Write the file of that name to the path they are given.

        Raises:
            OSError: It could not be written; the ones before are as they were.
        """
        folder = self.path / "checkpoints" / f"{step:010d}"
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            for name, write in writers.items():
                write(partial / name)
            (partial / _MANIFEST).write_text(json.dumps({name: _digest(partial / name) for name in writers}))
            for file in partial.iterdir():
                _to_disk(file)
            shutil.rmtree(folder, ignore_errors=True)
            partial.replace(folder)
            _to_disk(folder.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        for older in list(self.checkpoints.values())[:-_KEPT]:
            (older / _MANIFEST).unlink(missing_ok=True)  # first, so that it never looks whole
            for name in writers:
                if name != "model.zip":
                    (older / name).unlink(missing_ok=True)

    def drop_after(self, step: int) -> None:
        """Forget what was written after a checkpoint: its metrics, videos and best policy are written again."""
        rows = self.metrics()
        write_whole(self.path / "metrics.csv", lambda path: _write_rows(path, [r for r in rows if r["step"] <= step]))
        for video in self.path.glob("videos/*.mp4"):
            if video.stem.isdecimal() and int(video.stem) > step:
                video.unlink()

    def append_metrics(self, rows: Iterable[Mapping[str, float]]) -> None:
        """Add lines to metrics.csv."""
        path = self.path / "metrics.csv"
        if not path.exists():
            _write_rows(path, [])
        with path.open("a", newline="") as file:
            csv.DictWriter(file, METRICS).writerows(rows)

    def metrics(self) -> list[dict[str, float]]:
        """The lines of metrics.csv."""
        with suppress(FileNotFoundError), (self.path / "metrics.csv").open(newline="") as file:
            whole = (row for row in csv.DictReader(file) if None not in row.values())
            return [{name: float(value) for name, value in row.items()} for row in whole]
        return []

    def policy(self, which: str) -> Path:
        """The file of a policy: "best", "last" or a step.

        Raises:
            RunError: There is none.
        """
        every = {str(step): folder / "model.zip" for step, folder in self.checkpoints.items()}
        if which == "last" and every:
            return list(every.values())[-1]
        path = every.get(which.lstrip("0"), self.path / "best.zip" if which == "best" else None)
        if path is None or not path.is_file():
            raise RunError(
                f"{self.path} has no policy {which!r}. There are: "
                f"{', '.join([*(['best'] if (self.path / 'best.zip').is_file() else []), *every]) or 'none'}."
            )
        return path


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file in one step: a crash, or a full disk, leaves the one that was there.

    Raises:
        OSError: It could not be written.
    """
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    try:
        write(partial)
        _to_disk(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, METRICS)
        table.writeheader()
        table.writerows(rows)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "blake2b").hexdigest()


def _to_disk(path: Path) -> None:
    """Have the system write what it holds back."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
