"""The machine: its memory, and threads of torch that encode parts of a batch on its cores."""

import os
import subprocess
import sys

import pytest

from vlmrm_gym._util.system import available_memory, usable_cores

SCRIPT = """
import os, threading, time, warnings
import numpy as np, torch, vlmrm_gym
from vlmrm_gym.rewards import encoder
warnings.simplefilter("ignore")

def in_a_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]

def cores_in_use(frames):
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(64):
        reward(frames)
    return (time.process_time() - cpu) / (time.perf_counter() - wall)

before = torch.get_num_threads()
reward = vlmrm_gym.CLIPReward("tiny", prompt="a pole", device="cpu")
frames = np.random.default_rng(0).integers(0, 256, (37, 72, 108, 3), dtype=np.uint8)
parts = reward(frames)
assert (parts == reward(frames)).all(), "the same to the bit"
assert cores_in_use(frames[:1]) < 1.2, "one frame, one thread, and none that spins"
assert torch.get_num_threads() == in_a_new_thread() == before > 1, "torch keeps its number of threads"
if (child := os.fork()) == 0:
    os._exit(int(not (parts == reward(frames)).all()))
assert os.waitpid(child, 0)[1] == 0, "a child has no threads of its parent's, and makes its own"
encoder.in_parts = lambda work, batch: [work(batch)]
np.testing.assert_allclose(parts, reward(frames), atol=1e-6)
print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux") or usable_cores() < 2, reason="needs GNU OpenMP and 2 cores")
def test_parts_of_a_batch_are_encoded_by_threads_that_do_not_wait_for_each_other():
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True)
    assert done.stdout == "done\n", done.stdout + done.stderr


def test_the_memory_that_is_available_is_that_of_the_machine_or_the_container(tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       2000 kB\nMemAvailable:   1000 kB\nHugePages_Total:       0\n")
    monkeypatch.setattr("vlmrm_gym._util.system.MEMINFO", meminfo)
    monkeypatch.setattr("vlmrm_gym._util.system.CGROUP", tmp_path)
    assert available_memory() == 1_024_000
    (tmp_path / "memory.max").write_text("900000\n")
    (tmp_path / "memory.current").write_text("500000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 100000\n")
    assert available_memory() == 500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory() == 1_024_000
    meminfo.unlink()  # as on a Mac
    assert available_memory() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
