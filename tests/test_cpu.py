"""Torch's threads in a process that encodes on the CPU."""

import os
import subprocess
import sys

import pytest

from vlmrm_gym.cpu import usable_cores

SCRIPT = """
import threading, time, numpy as np, torch, vlmrm_gym, warnings
warnings.simplefilter("ignore")

def in_a_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]

def cores_in_use(count):
    frames = np.zeros((count, 72, 108, 3), np.uint8)
    reward(frames)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(64 // count):
        reward(frames)
    return (time.process_time() - cpu) / (time.perf_counter() - wall)

reward = vlmrm_gym.CLIPReward("tiny", prompt="a pole", device="cpu")
before = torch.get_num_threads()
print(cores_in_use(1) < 1.2, torch.get_num_threads() == in_a_new_thread() == before > 1)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux") or usable_cores() < 2, reason="needs GNU OpenMP and 2 cores")
def test_a_single_frame_is_encoded_by_one_thread_and_torch_keeps_its_own():
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True)
    assert done.stdout == "True True\n", done.stdout + done.stderr
