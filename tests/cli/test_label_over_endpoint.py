"""`vlmrm-gym label` with a server that answers from pixels, killed in the middle, and `vlmrm-gym fit`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from poles import accuracy
from vlm_server import KEY, VLMServer

from vlmrm_gym.cli.dataset import record_dataset
from vlmrm_gym.cli.fit import fit
from vlmrm_gym.datasets.segments import DatasetSegments
from vlmrm_gym.preferences import AnswersFile

PAIRS, CONCURRENCY = 60, 3
CALLS, ORDERS = 4, 2
"""Requests of a pair in two stages, and in how many its images are."""


@pytest.mark.slow
def test_a_labelling_that_is_killed_goes_on_and_its_answers_make_a_reward(tmp_path):
    """Nothing that was answered is asked again, nothing is lost, the budget holds, and the key is in no file."""
    dataset = record_dataset(
        "VLMRM/CartPole-v1", out=tmp_path / "poles", episodes=8, steps=40, reward=f"{__name__}:zero"
    )
    with VLMServer(latency=0.02) as server:
        first = start_labelling(server, dataset, tmp_path, call_budget=CALLS * 40)
        while server.requests < CALLS * 20:
            assert first.poll() is None
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
        first.wait()
        while server.active:
            time.sleep(0.01)
        with AnswersFile(tmp_path / "answers.db") as file:
            known = len(file.records())
        lost, shown = server.requests - CALLS * known, sum(server.asked.values())
        assert 0 < known < 30
        assert 0 <= lost <= CALLS * CONCURRENCY  # what was under way, and no more

        assert start_labelling(server, dataset, tmp_path, call_budget=CALLS * 20).wait(120) == 0
        assert f"{PAIRS - known - 20} of 60 pairs are not answered" in (tmp_path / "said.txt").read_text()
        assert server.requests - lost == CALLS * (known + 20)
        assert start_labelling(server, dataset, tmp_path).wait(120) == 0
        assert server.requests - lost == CALLS * PAIRS
        assert sum(server.asked.values()) - shown == ORDERS * (PAIRS - known)
        assert len(server.asked) == ORDERS * PAIRS
        assert server.keys == {f"Bearer {KEY}"}
    reward = fit(dataset, tmp_path / "answers.db", out=tmp_path / "reward")
    found = json.loads((tmp_path / "reward" / "fit.json").read_text())
    assert found["held_out"]["answers"] == PAIRS // 5
    with DatasetSegments(dataset) as segments:
        assert accuracy(reward.build("cpu"), segments.sample(100, 1, "other pairs", seed=1)) >= 0.8
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"answers.db", "reward.json", "settings.json", "said.txt"} <= {path.name for path in files}
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def zero(frames):
    """A reward, as datasets have one."""
    return np.zeros(len(frames), dtype=np.float32)


def start_labelling(server, dataset, folder, **settings):
    settings |= {"kind": "endpoint", "model": "m", "base_url": server.url, "concurrency": CONCURRENCY}
    command = [str(Path(sys.executable).with_name("vlmrm-gym")), "label", str(dataset), "--pairs", str(PAIRS)]
    command += ["--labeler", json.dumps(settings), "--out", str(folder / "answers.db")]
    with (folder / "said.txt").open("a") as said:
        return subprocess.Popen(command, env=os.environ | {"OPENAI_API_KEY": KEY}, stdout=said, stderr=said)
