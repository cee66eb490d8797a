"""Worker processes: kills, stops, forks, and the end of the program. See test_scorer_backends.py for the rest."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from backends import alive, check_scored, frames_of, leaving_nothing_behind, request_for, request_of, start, workers
from reward_models import PixelReward, SlowReward

from vlmrm_gym.scoring import process
from vlmrm_gym.states import States

QUICK = {"draw": 1.5, "encode": 1.5}


def started(pid):
    """Start time of a process, in ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    with leaving_nothing_behind():
        yield


def test_a_worker_that_takes_long_to_end_is_reaped_later(monkeypatch):
    """`close` does not wait for it; no zombie and no ResourceWarning remain."""
    monkeypatch.setattr(process, "REAP_TIMEOUT", 0.0)
    queue = start(PixelReward, 1)
    queue.close()
    del queue


def test_workers_that_are_killed_are_replaced_and_every_reward_arrives_once(rng):
    """SIGKILL at any moment: while loading, drawing, scoring, answering or idle."""
    queue = start(SlowReward, 2, batch_size=4)
    requests = []

    def submit():
        first = 100 * len(requests)
        requests.append(request_of(range(first, first + 12)))
        queue.submit(requests[-1])

    begun = time.monotonic()
    submit()
    assert requests[0].error() is None
    loading = time.monotonic() - begun
    for number, oldest in enumerate((True, False, True, True, False)):
        if number in (2, 4):  # fewer than three deaths over the same states, even on a slow machine
            assert all(request.error() is None for request in requests)
        until = time.monotonic() + loading * rng.uniform(0.8, 1.4)
        while time.monotonic() < until:
            submit()
            time.sleep(0.12)
        by_age = sorted(workers(), key=started)
        os.kill(by_age[0 if oldest else -1], signal.SIGKILL)
    for i, request in enumerate(requests):
        check_scored(request, range(100 * i, 100 * i + 12))
    queue.close()


def test_a_worker_that_does_not_read_a_batch_larger_than_a_pipe_is_replaced_and_closing_does_not_wait_for_it():
    queue = start(PixelReward, 1, batch_size=200, max_pending_bytes=2**26, worker_timeouts=QUICK)
    states = States(np.repeat(frames_of(range(200)).rows, 10_000, axis=2))
    os.kill(*workers(), signal.SIGSTOP)
    request = request_for(states)
    queue.submit(request)
    check_scored(request, range(200))
    (stopped,) = (pid for pid in workers() if alive(pid))
    os.kill(stopped, signal.SIGSTOP)
    request = request_for(states)
    queue.submit(request)
    time.sleep(0.1)
    begun = time.monotonic()
    queue.close()
    assert time.monotonic() - begun < 1.5
    assert isinstance(request.error(), RuntimeError)


def test_a_slow_worker_that_makes_progress_is_not_replaced():
    """A batch takes three times the limit, each slice a third of it."""
    queue = start(SlowReward, 1, batch_size=225, worker_timeouts=QUICK)
    before = workers()
    np.testing.assert_array_equal(queue.features(frames_of(range(225)))[:, 0, 0], range(225))
    assert workers() == before
    queue.close()


def test_scoring_in_a_fork_is_an_error():
    queue = start(PixelReward, 0)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            queue.submit(request_of([1]))
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"was forked from the one that scores" in os.read(reader, 1000)
    os.close(reader), os.close(writer)
    queue.close()
