"""Worker processes: kills, Ctrl-C, forks and cleanup. See test_scorer_backends.py for the rest."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from backends import children, request_of, start
from reward_models import PixelReward, SlowReward

from vlmrm_gym.rendering.stored import FrameStore
from vlmrm_gym.scoring import process
from vlmrm_gym.scoring.backends import make_scoring_queue

HELPERS = Path(__file__).parents[1] / "helpers"
earlier: set[int] = set()
"""Children that existed before a test, such as multiprocessing's resource tracker."""


def processes():
    """Process IDs of children started by this test, including zombies."""
    return children() - earlier


def started(pid):
    """Start time of a process, in ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """Contract 8: no process is left after any test in this file. A killed one may take a while to end."""
    threads = set(threading.enumerate())
    earlier.clear()
    earlier.update(children())
    yield
    gc.collect()
    deadline = time.monotonic() + 10
    while processes() or not set(threading.enumerate()) <= threads:
        assert time.monotonic() < deadline, (processes(), set(threading.enumerate()) - threads)
        time.sleep(0.02)


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
        by_age = sorted(processes(), key=started)
        os.kill(by_age[0 if oldest else -1], signal.SIGKILL)
    for i, request in enumerate(requests):
        assert request.error() is None
        np.testing.assert_array_equal(request.values, np.arange(100 * i, 100 * i + 12))
    queue.close()


def test_neither_shared_memory_nor_semaphores_are_used():
    """So none can be leaked."""
    queue = start(PixelReward, 2)
    request = request_of(range(100))
    queue.submit(request)
    assert request.error() is None
    mapped = [Path(f"/proc/{pid}/maps").read_text() for pid in processes()]
    queue.close()
    assert len(mapped) == 2
    assert not any("/dev/shm/" in maps for maps in mapped)


SCRIPT = """
import sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
import vlmrm_gym
from counting_env import Counting

# Without the guard that multiprocessing's spawn would need.
envs = vlmrm_gym.VLMRewardVectorEnv(
    [lambda: Counting([2000])] * 2,
    reward="reward_models:SlowReward",
    reward_kwargs={"batch_size": 500},
    num_workers=int(sys.argv[3]),
    overlap=True,
)
envs.reset(seed=0)
for _ in range(1500):
    envs.step(np.zeros(2, dtype=int))
print("busy", flush=True)
if sys.argv[2] == "end":
    sys.exit()
envs.flush()
"""


@pytest.mark.parametrize(
    ("how", "num_workers"), [("end", 2), ("SIGINT", 0), ("SIGINT", 2), ("SIGTERM", 2), ("SIGKILL", 2)]
)
def test_workers_end_with_the_program(how, num_workers, tmp_path):
    """Within 5 s, even in the middle of a 10 s batch."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    program = subprocess.Popen(
        [sys.executable, str(script), str(HELPERS), how, str(num_workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    try:
        assert program.stdout.readline() == "busy\n"
        children = {int(pid) for pid in Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()}
        begun = time.perf_counter()
        if how != "end":
            assert len(children) == num_workers
            os.kill(program.pid, getattr(signal, how))
        while any(Path(f"/proc/{child}").exists() for child in children):
            assert time.perf_counter() - begun < 5
            time.sleep(0.05)
        _, errors = program.communicate(timeout=20)
    finally:
        program.kill()
    assert ("KeyboardInterrupt" in errors) == (how == "SIGINT")
    if how == "end":
        assert program.returncode == 0, errors


TORCH_SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import vlmrm_gym
import numpy as np
from counting_env import Counting

torch_reward = {"reward": "reward_models:TorchReward", "reward_kwargs": {"batch_size": 100}}
envs = vlmrm_gym.VLMRewardVectorEnv([lambda: Counting([400])], **torch_reward, overlap=True)
envs.reset(seed=0)
for _ in range(300):
    envs.step(np.zeros(1, dtype=int))
print("busy", flush=True)
"""


def test_a_program_can_end_in_the_middle_of_a_slow_batch(tmp_path):
    """A thread inside torch at interpreter exit would abort the program."""
    script = tmp_path / "script.py"
    script.write_text(TORCH_SCRIPT)
    ended = subprocess.run([sys.executable, str(script), str(HELPERS)], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "busy\n"), ended.stderr


def test_a_reward_model_that_cannot_be_pickled_starts_no_process():
    lock = threading.Lock()
    with pytest.raises((TypeError, pickle.PicklingError), match="pickle"):
        make_scoring_queue(
            lambda device: PixelReward(prompt=lock),
            lambda render_size: FrameStore(),
            num_workers=1,
            devices=None,
            device="cpu",
            max_pending_bytes=1,
        )


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
