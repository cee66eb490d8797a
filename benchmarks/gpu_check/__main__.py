"""Runs the checks one after the other and writes the report; see the package."""

import ctypes
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import tyro

import benchmarks.gpu_check
from benchmarks.gpu_check.checks import CHECKS
from benchmarks.gpu_check.isolated import run_isolated
from benchmarks.gpu_check.report import Outcome, Row, render
from benchmarks.gpu_check.settings import Settings

MIN_SECONDS = 20.0
"""With less time left than this, a check is not begun."""


@dataclass(frozen=True)
class Args:
    report: Path = Path("runs/gpu_check.md")
    """the report's file"""
    only: tuple[str, ...] = ()
    """names of the checks to run; none given: all"""
    minutes: float = 15.0
    """checks that have not begun by then are left out, and one that runs is stopped"""
    device: Literal["cuda", "cpu"] = "cuda"
    """what to check; cpu runs the same code without a GPU"""
    quick: bool = False
    """as little work as exercises the code"""


def count_gpus() -> int:
    """How many GPUs the CUDA driver reports; 0 without a driver. Takes milliseconds: nothing is imported."""
    for library in ("libcuda.so.1", "nvcuda.dll"):
        try:
            driver = ctypes.CDLL(library)
        except OSError:
            continue
        count = ctypes.c_int(0)
        if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
            return count.value
    return 0


def main(args: Args) -> int:
    """Run the checks; returns the exit status: 1 if one failed, 0 if none did or there is no GPU."""
    names = [check.name for check in CHECKS]
    if unknown := set(args.only) - set(names):
        raise ValueError(f"`only` must be among {', '.join(names)}. Received {', '.join(sorted(unknown))}.")
    if args.minutes <= 0:
        raise ValueError(f"`minutes` must be above 0. Received {args.minutes}.")
    num_gpus = count_gpus()
    if args.device == "cuda" and not num_gpus:
        print("No NVIDIA GPU was found (the CUDA driver is missing, or reports none): nothing to check.")
        return 0
    settings, begun = Settings(args.device, num_gpus, args.quick), time.monotonic()
    chosen = [check for check in CHECKS if not args.only or check.name in args.only]
    heading = f"GPU check, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    outcomes: list[Outcome] = []
    args.report.parent.mkdir(parents=True, exist_ok=True)
    for number, check in enumerate(chosen, 1):
        left = 60 * args.minutes - (time.monotonic() - begun)
        print(f"[{number}/{len(chosen)}] {check.title} (at most {min(check.limit, max(0, left)):.0f} s)", flush=True)
        if left < min(MIN_SECONDS, check.limit):
            outcome = Outcome(
                check.name, check.title, [Row("not run", f"{args.minutes:g} minutes are over", "skipped")]
            )
        else:
            outcome = run_isolated(check.name, check.title, settings, min(check.limit, left), show)
        outcomes.append(outcome)
        print(
            f"    {outcome.verdict}{f': {outcome.error}' if outcome.error else ''}, {outcome.seconds:.0f} s", flush=True
        )
        args.report.write_text(render(outcomes, heading))  # after every check: the machine may crash in the next
    print(f"\n{sum(one.verdict == 'FAIL' for one in outcomes)} of {len(outcomes)} checks failed. Report: {args.report}")
    return int(any(one.verdict == "FAIL" for one in outcomes))


def show(row: Row) -> None:
    """Print a row."""
    print(f"    {row.what}: {row.value} {row.verdict}".rstrip(), flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Args, description=benchmarks.gpu_check.__doc__)))
    except ValueError as error:
        sys.exit(str(error))
