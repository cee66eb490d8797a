"""Contract 8 for programs: however one ends, its workers end with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from backends import actors, children, wait_until

HELPERS = Path(__file__).parents[1] / "helpers"
SCRIPT = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import vlmrm_gym
from counting_env import Counting

# Without the guard that multiprocessing's spawn would need.
envs = vlmrm_gym.VLMRewardVectorEnv(
    [lambda: Counting([2000])] * 2,
    reward=f"reward_models:{sys.argv[3]}",
    reward_kwargs={"batch_size": 500},
    num_workers=int(sys.argv[4]),
    backend=sys.argv[5],
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
    ("how", "reward", "num_workers", "backend"),
    [
        ("end", "SlowReward", 2, "process"),
        # A thread inside torch at interpreter exit would abort the program.
        pytest.param("end", "TorchReward", 0, "process", marks=pytest.mark.slow),
        ("SIGKILL", "SlowReward", 2, "process"),
        pytest.param("SIGINT", "SlowReward", 2, "process", marks=pytest.mark.slow),
        *(pytest.param(how, "SlowReward", 2, "ray", marks=pytest.mark.slow) for how in ("end", "SIGKILL")),
    ],
)
def test_workers_end_with_the_program(how, reward, num_workers, backend, tmp_path):
    """Soon, in the middle of a batch of 10 s; and with them the local Ray cluster."""
    if backend == "ray":
        pytest.importorskip("ray")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    program = subprocess.Popen(
        [sys.executable, script, HELPERS, how, reward, str(num_workers), backend],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    try:
        assert program.stdout.readline() == "busy\n"
        own = children(program.pid)
        workers = actors(program.pid) if backend == "ray" else own
        if how != "end":
            assert len(workers) == num_workers
            os.kill(program.pid, getattr(signal, how))
        limit = 15 if backend == "ray" else 5
        assert wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in workers), limit)
        _, errors = program.communicate(timeout=30)
        assert wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in own), limit)
    finally:
        program.kill()
    assert ("KeyboardInterrupt" in errors) == (how == "SIGINT"), errors
    if how == "end":
        assert program.returncode == 0, errors
