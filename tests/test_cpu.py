"""Torch's threads in a process that encodes on the CPU."""

import os
import subprocess
import sys

import pytest

from vlmrm_gym.cpu import usable_cores

SCRIPT = """
import threading, time, torch
from vlmrm_gym.cpu import share_cores

def in_a_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]

def cpu_seconds():
    begun = time.process_time()
    for _ in range(100):
        torch.ones(2**17)
        time.sleep(0.01)
    return time.process_time() - begun

torch.set_num_threads(2)
spinning = cpu_seconds()
share_cores()
print(torch.get_num_threads(), in_a_new_thread(), cpu_seconds() < spinning / 2)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux") or usable_cores() < 2, reason="needs GNU OpenMP and 2 cores")
def test_torch_threads_stay_as_many_and_no_longer_spin():
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True)
    assert done.stdout == "2 2 True\n", done.stdout + done.stderr
