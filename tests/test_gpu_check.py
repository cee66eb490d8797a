"""The GPU check runs, isolates what fails, and reports it; its checks run on a CPU, so none is untested code."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from benchmarks.gpu_check import checks, drawing, learning, rewards
from benchmarks.gpu_check.__main__ import count_gpus
from benchmarks.gpu_check.checks import CHECKS, Check
from benchmarks.gpu_check.isolated import run_isolated
from benchmarks.gpu_check.report import Outcome, Row, render
from benchmarks.gpu_check.settings import ROOT, Settings

QUICK = Settings("cpu", 0, quick=True)
pytestmark = pytest.mark.filterwarnings("ignore:The bundled model does not know", "ignore::DeprecationWarning")


def gpu_check(*arguments):
    command = [sys.executable, "-m", "benchmarks.gpu_check", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.skipif(count_gpus() > 0, reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_exits_cleanly(tmp_path):
    done = gpu_check("--report", str(tmp_path / "report.md"))
    assert done.returncode == 0
    assert "No NVIDIA GPU was found" in done.stdout
    assert not (tmp_path / "report.md").exists()


def test_unknown_checks_are_refused():
    done = gpu_check("--device", "cpu", "--only", "rewads")
    assert done.returncode == 1
    assert "`only` must be among machine, drawing, rewards" in done.stderr
    assert "Received rewads." in done.stderr


def test_the_report_of_a_run_has_a_summary_and_a_table(tmp_path):
    report = tmp_path / "folder" / "report.md"
    done = gpu_check("--device", "cpu", "--quick", "--only", "machine", "--report", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[1/1] Hardware and versions" in done.stdout
    written = report.read_text()
    assert "| Hardware and versions | ok |" in written
    assert f"| Python | {sys.version.split()[0]} |  |" in written


def test_checks_that_have_no_time_left_are_not_begun(tmp_path):
    report = tmp_path / "report.md"
    done = gpu_check("--device", "cpu", "--minutes", "0.01", "--only", "ray", "--report", str(report))
    assert done.returncode == 0
    assert "| Fractional GPUs on Ray | skipped: 0.01 minutes are over | 0 |" in report.read_text()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_check_exists(check):
    assert callable(check.load())


CHECKS_THAT_FAIL = """
import os, subprocess, sys, time
from benchmarks.gpu_check.report import Row, Skipped

def raises(settings):
    yield Row("before", "1", "ok")
    raise OSError("the error's own words")

def crashes(settings):
    yield Row("before", "1", "ok")
    os.abort()

def hangs(settings):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield Row("child", str(child.pid))
    time.sleep(600)

def skips(settings):
    raise Skipped("there is one GPU")
    yield

def fails(settings):
    yield Row.at_most("too large", 2.0, 1.0)
"""


@pytest.fixture
def run_failing(tmp_path, monkeypatch):
    """Runs a function of CHECKS_THAT_FAIL as a check."""
    (tmp_path / "failing.py").write_text(CHECKS_THAT_FAIL)
    # `sitecustomize` is imported by every Python process: the check's own process gets the further checks from it.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, failing\n"
        "sys.modules['benchmarks.gpu_check.failing'] = failing\n"
        "from benchmarks.gpu_check import checks\n"
        "names = 'raises', 'crashes', 'hangs', 'skips', 'fails'\n"
        "checks.CHECKS += tuple(checks.Check(name, name, f'failing:{name}', 60) for name in names)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))

    def run(name, limit=60.0):
        return run_isolated(name, name.title(), QUICK, limit)

    return run


def test_a_check_that_raises_keeps_its_rows_and_shows_the_error(run_failing):
    outcome = run_failing("raises")
    assert outcome.rows == [Row("before", "1", "ok")]
    assert outcome.error == "ended with exit status 1"
    assert outcome.log_tail.endswith("OSError: the error's own words")
    assert outcome.verdict == "FAIL"


def test_a_check_that_crashes_is_a_line_of_the_report(run_failing):
    outcome = run_failing("crashes")
    assert outcome.rows == [Row("before", "1", "ok")]
    assert outcome.error == "was killed by signal SIGABRT"
    assert "| Crashes | FAIL: was killed by signal SIGABRT |" in render([outcome], "Report")


@pytest.mark.slow
def test_a_check_that_hangs_is_stopped_with_all_that_it_started(run_failing):
    start = time.monotonic()
    outcome = run_failing("hangs", limit=15.0)
    assert time.monotonic() - start < 60
    assert outcome.error == "did not finish within 15 seconds"
    (row,) = outcome.rows
    with pytest.raises(ProcessLookupError):
        os.kill(int(row.value), 0)


def test_skipped_and_failed_rows(run_failing):
    assert run_failing("skips").rows == [Row("not run", "there is one GPU", "skipped")]
    assert run_failing("skips").verdict == "skipped"
    assert run_failing("fails").rows == [Row("too large", "2 (limit 1)", "FAIL")]


def test_verdicts():
    """A failure outweighs the rest; a missed target is no failure."""
    assert Row.at_most("nan", float("nan"), 1.0).verdict == "FAIL"
    assert Row.at_most("equal", 1.0, 1.0).verdict == "ok"
    assert Outcome("a", "A", [Row("x", "1", "ok"), Row("y", "2", "below target")]).verdict == "below target"
    assert Outcome("a", "A", [Row("x", "1", "below target"), Row("y", "2", "FAIL")]).verdict == "FAIL"
    assert Outcome("a", "A", [Row("x", "1")]).verdict == "ok"


def test_cells_cannot_break_the_table():
    report = render([Outcome("a", "A", [Row("one\ntwo", "3 | 4")], log_tail="words")], "Report")
    assert "| one two | 3 \\| 4 |  |" in report
    assert "```text\nwords\n```" in report


def failures(rows):
    rows = list(rows)
    assert rows
    return [row for row in rows if row.verdict == "FAIL"]


def test_rewards_on_the_cpu():
    assert not failures(rewards.compare_precisions(QUICK))


def test_wrong_rewards_are_found(monkeypatch):
    """Were the GPU's rewards off by a hundredth, fp16 would fail."""
    score = rewards.CLIPReward.__call__

    def wrong(self, frames):
        return score(self, frames) + (0.01 if self.model.precision == "fp16" else 0.0)

    monkeypatch.setattr(rewards.CLIPReward, "__call__", wrong)
    found = {row.what for row in failures(rewards.compare_precisions(QUICK))}
    assert found == {f"tiny, fp16, alpha {alpha}: largest difference" for alpha in ("0", "0.5")}


def test_memory_on_the_cpu():
    rows = list(rewards.run_out_of_memory(QUICK))
    assert rows[0] == Row("tiny: batch size of 32 became", "16", "ok")
    assert not failures(rows)


def test_a_batch_that_is_not_halved_is_found(monkeypatch):
    monkeypatch.setattr(rewards, "_limit_memory", lambda *_, **__: lambda: None)
    assert [row.what for row in failures(rewards.run_out_of_memory(QUICK))] == ["tiny: batch size of 32 became"]


def test_frames_that_differ_are_found():
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    assert not failures(drawing._compare_frames("fast", frames, frames))
    black = np.zeros_like(frames)
    assert "fast, frames show something" in {
        row.what for row in failures(drawing._compare_frames("fast", black, black))
    }
    found = {row.what for row in failures(drawing._compare_frames("fast", frames, frames[:, ::-1]))}
    assert {"fast, mean difference in grey levels", "fast, share of pixels that differ by more than 32"} <= found


def test_relative_differences():
    import torch

    one, other = torch.tensor([1.0, 4.0]), torch.tensor([1.5, 4.0])
    assert learning.relative_difference(one, other) == pytest.approx(0.125)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["drawing", "workers", "gpus", "ray", "compile", "programs", "fps-tiny"])
def test_the_longer_checks_on_the_cpu(name):
    """Those of large models differ from `fps-tiny` in their names only."""
    check: Check = next(check for check in checks.CHECKS if check.name == name)
    outcome = run_isolated(check.name, check.title, QUICK, 600)
    assert not outcome.error, outcome.log_tail
    assert not failures(outcome.rows)
