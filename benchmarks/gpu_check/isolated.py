"""Runs a check in its own process group, with a time limit."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from benchmarks.gpu_check.report import Outcome, Row
from benchmarks.gpu_check.settings import ROOT, Settings

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
TAIL = 2_000
"""Characters of a failed check's output that the report shows."""


def run_isolated(
    name: str, title: str, settings: Settings, limit: float, show: Callable[[Row], object] = lambda row: None
) -> Outcome:
    """Run a check of `benchmarks.gpu_check.checks.CHECKS` in a new process.

    Args:
        name: The name of the check.
        title: Its heading in the report.
        settings: Passed to the check.
        limit: Seconds after which its process, and all that it has started, are killed.
        show: Called with each row when it arrives.
    """
    outcome, begun = Outcome(name, title), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        rows, log = Path(folder) / "rows.jsonl", Path(folder) / "log.txt"
        rows.touch()
        command = [sys.executable, "-m", "benchmarks.gpu_check.child", name, json.dumps(asdict(settings)), str(rows)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as output, rows.open() as arriving:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                ended = False
                while not ended and time.monotonic() - begun < limit:
                    time.sleep(0.2)
                    ended = process.poll() is not None  # before reading: no row is written afterwards
                    _read_rows(arriving, outcome, show)
            finally:
                _kill_group(process)
            _read_rows(arriving, outcome, show)
        outcome.seconds = time.monotonic() - begun
        outcome.error = _describe_end(process.returncode) if ended else f"did not finish within {limit:.0f} seconds"
        if outcome.error:
            outcome.log_tail = log.read_text(errors="replace")[-TAIL:].strip()
    return outcome


def _read_rows(arriving: TextIO, outcome: Outcome, show: Callable[[Row], object]) -> None:
    """Take the complete lines that have been written since the last call."""
    while True:
        position = arriving.tell()
        line = arriving.readline()
        if not line.endswith("\n"):
            arriving.seek(position)
            return
        row = Row(**json.loads(line))
        outcome.rows.append(row)
        show(row)


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """End the process and what it has started: workers, Ray's daemons, programs."""
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        until = time.monotonic() + patience
        while time.monotonic() < until and _group_lives(process):
            time.sleep(0.05)
    process.wait()


def _group_lives(process: "subprocess.Popen[bytes]") -> bool:
    process.poll()  # reaps the leader, which would count as alive otherwise
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _describe_end(status: int) -> str:
    if status < 0:
        return f"was killed by signal {signal.Signals(-status).name}"
    return "" if status == 0 else f"ended with exit status {status}"
