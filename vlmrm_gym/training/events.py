"""Events for TensorBoard, also on a full disk and after a run was resumed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import Logger, TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter

from vlmrm_gym.files import check_space

_EVENTS_SIZE = 2**16
"""More than the events of one write take, in bytes."""


class TensorBoardWriter(TensorBoardOutputFormat):
    """A TensorBoard writer that can purge events from a step on, and writes nothing while the disk is full."""

    def __init__(self, folder: Path, purge_step: int) -> None:
        self._folder, self._is_closed = folder, False
        self.writer = new_event_file(folder, purge_step)

    def write(self, *args: Any, **kwargs: Any) -> None:
        """Write, or raise an OSError if there is no room."""
        check_space(self._folder, _EVENTS_SIZE)
        super().write(*args, **kwargs)

    def close(self) -> None:
        """Close, even if the last events cannot be written."""
        with suppress(OSError):
            super().close()


def new_event_file(folder: Path, purge_step: int | None = None) -> SummaryWriter:
    """Start an event file that TensorBoard reads after those that the folder has.

    TensorBoard reads them in the order of their names, which begin with the second and end with a counter: within a
    second, file 10 would be read before file 9. So two files never begin in the same second.
    """
    parts = (path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*.*"))
    seconds = [int(part) for part in parts if part.isdecimal()]
    time.sleep(min(max(max(seconds, default=0) + 1 - time.time(), 0), 1))
    check_space(folder, _EVENTS_SIZE)
    return SummaryWriter(str(folder), purge_step=purge_step)


@contextmanager
def event_logger(folder: Path, purge_step: int) -> Iterator[Logger]:
    """A logger of Stable-Baselines3 that writes events for TensorBoard, and those from a step on anew."""
    output = TensorBoardWriter(folder, purge_step)
    try:
        yield Logger(str(folder), [output])
    finally:
        output.close()
