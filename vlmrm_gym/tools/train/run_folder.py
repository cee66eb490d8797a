"""The folder of a run, whose files docs/guides/training_command.md lists."""

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.files import atomic_write, naming, sync
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.rewards.hub import PREFIX, download_agent

METRICS = ("step", "seconds", "episodes", "vlm_return", "task_return", "success_fraction", "success", "scored")
"""Columns of metrics.csv: steps and seconds so far, the number of episodes scored, and their means.

`success_fraction` is per step, `success` per episode; both are omitted if the task does not define success.
`scored` is the fraction of rewards that are not interpolated; omitted where all are scored.
"""

BEST = ("best.zip", "best.json", "best_episodes.npz")
"""The policy with the best VLM return, that return, and the episodes that it is of if the reward is learned."""
HEAD = ("head.safetensors", "reward.json")
"""The newest head of a reward that is learned, and the specification of the reward."""
CHECKPOINTED = (*BEST, *HEAD, "metrics.csv")
"""Files copied into each checkpoint."""

_MANIFEST = "manifest.json"
_KEPT = 2
"""Number of checkpoints that keep all files."""


class RunError(InputError):
    """A run's folder cannot be created or used."""


class RunFolder:
    """A run's folder, at a path."""

    def __init__(self, path: Path) -> None:
        self.path, self.config_file, self._metrics = path, path / "config.yaml", path / "metrics.csv"
        self.head = path / HEAD[0]
        """The file of the newest head, if the reward is learned."""

    def check_new(self) -> None:
        """Raise a RunError if the folder exists."""
        if os.path.lexists(self.path):
            raise RunError(
                f"The run's folder {self.path} exists already. Resume that run by --resume {self.path}, or give this "
                "one another name by --run-name."
            )

    def create(self) -> None:
        """Make the folder."""
        try:
            self.path.mkdir(parents=True)
        except (OSError, ValueError) as error:
            message = f"The run's folder {self.path} cannot be made: {error}. Choose another --base-path."
            raise RunError(message) from None

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open an existing folder, or an agent on the hub."""
        if path.as_posix().startswith(PREFIX):
            path = download_agent(path.as_posix())
        folder = cls(path)
        if not folder.config_file.is_file():
            raise RunError(f"{path} is not the folder of a run: it has no config.yaml.")
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock that prevents other processes from training in this folder."""
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
    def checkpoints(self) -> dict[int, Path]:
        """The folders of all checkpoints, by step, in order."""
        folders = self.path.glob("checkpoints/*")
        return dict(sorted((int(folder.name), folder) for folder in folders if folder.name.isdecimal()))

    def newest_checkpoint(self) -> Path | None:
        """Find the checkpoint to resume from; None if there is none and training can start from the beginning."""
        complete = [folder for folder in self.checkpoints.values() if (folder / _MANIFEST).is_file()]
        if not complete:
            if self.checkpoints or (self.path / "learning_curve.png").exists():
                raise RunError(
                    f"{self.path} has results, but no complete checkpoint to resume from. Start a new run: resuming "
                    "this one would begin at step 0 and delete its results."
                )
            return None
        folder, damaged = complete[-1], _MANIFEST
        with suppress(OSError, ValueError):
            manifest = json.loads((folder / _MANIFEST).read_text())
            damaged = ", ".join(name for name, digest in manifest.items() if _digest(folder / name) != digest)
        if damaged:
            earlier = "Start a new run."
            if complete[1:]:
                earlier = f"Remove that folder to resume from step {int(complete[-2].name):,}."
            raise RunError(f"The checkpoint {folder} is damaged: {damaged} is not what was written. {earlier}")
        return folder

    def save_checkpoint(self, step: int, writers: Mapping[str, Callable[[Path], object]]) -> None:
        """Write a checkpoint atomically, by functions of the path of each file; keep only the policy of older ones."""
        folder = self.path / "checkpoints" / f"{step:010d}"
        unfinished = folder.with_suffix(".partial")
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            unfinished.mkdir(parents=True)
            for name, write in writers.items():
                with naming(folder / name):
                    write(unfinished / name)
            (unfinished / _MANIFEST).write_text(json.dumps({name: _digest(unfinished / name) for name in writers}))
            for file in (*unfinished.iterdir(), unfinished, self._metrics):
                if file.exists():
                    sync(file)
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.replace(folder)
            sync(folder.parent)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        for older in list(self.checkpoints.values())[:-_KEPT]:
            (older / _MANIFEST).unlink(missing_ok=True)  # first, so that it never looks complete
            for file in older.iterdir():
                if file.name != "model.zip":
                    file.unlink()

    def rewind(self, checkpoint: Path | None) -> None:
        """Remove everything written after a checkpoint; with None, everything."""
        step = -1 if checkpoint is None else int(checkpoint.name)
        for folder_step, folder in self.checkpoints.items():
            if folder_step > step:
                shutil.rmtree(folder)
        for video in self.path.glob("videos/*.mp4"):
            if not video.stem.isdecimal() or int(video.stem) > step:
                video.unlink()
        for name in CHECKPOINTED:
            (self.path / name).unlink(missing_ok=True)
            if checkpoint is not None and (checkpoint / name).exists():
                atomic_write(self.path / name, partial(shutil.copyfile, checkpoint / name))

    def append_metrics(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Append lines to metrics.csv atomically: all or, with an OSError, none."""
        if not rows:
            return
        before = self._metrics.stat().st_size if self._metrics.exists() else 0
        try:
            with self._metrics.open("a", newline="") as file:
                writer = csv.DictWriter(file, [name for name in METRICS if name in rows[0]], lineterminator="\n")
                if not before:
                    writer.writeheader()
                writer.writerows(rows)
        except OSError:
            if self._metrics.exists():
                os.truncate(self._metrics, before)
            raise

    def metrics(self) -> list[dict[str, float]]:
        """Read the lines of metrics.csv."""
        if not self._metrics.exists():
            return []
        with self._metrics.open(newline="") as file:
            return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]

    def policy(self, which: str) -> Path:
        """Find the file of a policy: "best" (else the last, if too few episodes were scored), "last" or a step."""
        every = {str(step): folder / "model.zip" for step, folder in self.checkpoints.items()}
        if every:
            every["best"] = every["last"] = list(every.values())[-1]
        if (best := self.path / "best.zip").is_file():
            every["best"] = best
        policy = every.get(which.lstrip("0"))  # also "0000000240", as the folders are called
        if policy is None:
            raise RunError(f"{self.path} has no policy {short_repr(which)}. There are: {', '.join(every) or 'none'}.")
        return policy


def _digest(file: Path) -> str:
    if not file.is_file():
        return ""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "blake2b").hexdigest()
