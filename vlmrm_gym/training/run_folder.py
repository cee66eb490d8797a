"""The folder of a run: what was asked for, with what it ran, what came of it, and checkpoints to go on from.

config.yaml            the configuration, everything filled in
versions.json          of Python, packages and machine, for every start
metrics.csv            a line for every time that episodes were scored
learning_curve.png     the same, to look at
best.zip, best.json    the policy with the best scored return
checkpoints/<step>/    policy (model.zip), replay buffer, state, metrics, best policy; of older ones the policy alone
videos/<step>.mp4      the deterministic agent, with its reward drawn in
events.out.tfevents.*  for TensorBoard
.lock                  so that one process at a time trains
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

METRICS: tuple[str, ...] = ("step", "seconds", "episodes", "vlm_return", "task_return", "success_share", "success")
"""The columns of metrics.csv: steps and seconds of training so far; how many episodes were scored, and their means."""

BEST = ("best.zip", "best.json")
"""The policy with the best scored return, and what it is."""
COPIED = (*BEST, "metrics.csv")
"""What checkpoints have a copy of."""

_HEADER = {name: name for name in METRICS}
_MANIFEST = "manifest.json"
_NEEDED = {"model.zip", "state.pkl"}
"""What every checkpoint has."""
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
        except (OSError, ValueError) as error:
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

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While this lasts, no other process trains into this folder.

        Raises:
            RunError: Another one does.
        """
        lock = FileLock(self.path / ".lock", blocking=False)
        try:
            lock.acquire()
        except Timeout:
            raise RunError(f"The run {self.path} is being trained by another process. Wait for its end.") from None
        try:
            yield
        finally:
            lock.release()

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
            RunError: It is damaged; or there was one, and what came of it would be lost by beginning anew.
        """
        whole = [folder for folder in self.checkpoints.values() if (folder / _MANIFEST).is_file()]
        if not whole:
            if self.checkpoints or (self.path / "learning_curve.png").exists():
                raise RunError(
                    f"{self.path} has no checkpoint left to go on from. Start a new run: going on with this one would "
                    "begin anew, and remove what it has."
                )
            return None
        folder = whole[-1]
        try:
            manifest = json.loads((folder / _MANIFEST).read_text())
            damaged = [
                name
                for name in sorted(_NEEDED | set(manifest))
                if not (folder / name).is_file() or _digest(folder / name) != manifest.get(name)
            ]
        except (OSError, ValueError, AttributeError, TypeError):
            damaged = [_MANIFEST]
        if damaged:
            earlier = f"Remove that folder to go on from step {int(whole[-2].name):,}." if whole[1:] else "Start anew."
            raise RunError(
                f"The checkpoint {folder} is damaged: {', '.join(damaged)} is not what was written. {earlier}"
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
        unfinished = folder.with_suffix(".partial")
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            unfinished.mkdir(parents=True)
            for name, write in writers.items():
                write(unfinished / name)
            (unfinished / _MANIFEST).write_text(json.dumps({name: _digest(unfinished / name) for name in writers}))
            for file in (*unfinished.iterdir(), unfinished, self._metrics):
                if file.exists():
                    _to_disk(file)
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.replace(folder)
            _to_disk(folder.parent)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        for older in list(self.checkpoints.values())[:-_KEPT]:
            (older / _MANIFEST).unlink(missing_ok=True)  # first, so that it never looks whole
            for file in older.iterdir():
                if file.name != "model.zip":
                    file.unlink()

    def go_back(self, checkpoint: Path | None) -> None:
        """Forget what was written after a checkpoint, or everything: it is written again."""
        step = -1 if checkpoint is None else int(checkpoint.name)
        for folder_step, folder in self.checkpoints.items():
            if folder_step > step:
                shutil.rmtree(folder)
        for video in self.path.glob("videos/*.mp4"):
            if not video.stem.isdecimal() or int(video.stem) > step:
                video.unlink()
        for name in COPIED:
            (self.path / name).unlink(missing_ok=True)
            if checkpoint is not None and (checkpoint / name).exists():
                write_whole(self.path / name, partial(shutil.copyfile, checkpoint / name))

    def append_metrics(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Add lines to metrics.csv, all or none.

        Raises:
            OSError: They could not be written.
        """
        with self._metrics.open("ab", buffering=0) as file:
            before = file.tell()
            lines = "".join(_lines(rows if before else [_HEADER, *rows])).encode()
            try:
                if file.write(lines) < len(lines):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._metrics))
            except OSError:
                file.truncate(before)
                raise

    def metrics(self) -> list[dict[str, float]]:
        """The lines of metrics.csv, but for those that are damaged, as by the end of the process."""
        if not self._metrics.exists():
            return []
        rows = []
        for line in self._metrics.read_text(errors="replace").splitlines(keepends=True)[1:]:
            with suppress(ValueError):
                if line.endswith("\n"):
                    rows.append(dict(zip(METRICS, map(float, line.split(",")), strict=True)))
        return rows

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.csv"

    def policy(self, which: str) -> Path:
        """The file of a policy: "best" (the last, if none was scored often enough), "last" or a step.

        Raises:
            RunError: There is none.
        """
        every = {str(step): folder / "model.zip" for step, folder in self.checkpoints.items()}
        if (best := self.path / "best.zip").is_file():
            every["best"] = best
        if self.checkpoints:
            every["last"] = self.checkpoints[max(self.checkpoints)] / "model.zip"
            every.setdefault("best", every["last"])
        policy = every.get(which.lstrip("0"))  # as the folders are called
        if policy is None:
            raise RunError(f"{self.path} has no policy {which!r}. There are: {', '.join(every) or 'none'}.")
        return policy


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file in one step: a crash, or a full disk, leaves the one that was there.

    Raises:
        OSError: It could not be written.
    """
    unfinished = path.with_name(f"{path.stem}.partial{path.suffix}")
    try:
        write(unfinished)
        _to_disk(unfinished)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _lines(rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    for row in rows:
        yield ",".join(str(row[name]) for name in METRICS) + "\n"


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
