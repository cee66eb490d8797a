"""benchmarks/fps.py runs, also on a machine without a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_stage_has_a_rate(tmp_path):
    flags = "--env VLMRM/CartPole-v1 --device cpu --num-envs 1 --num-workers 1 --seconds 0.1 --no-reference"
    command = [sys.executable, "benchmarks/fps.py", *flags.split(), "--json", str(tmp_path / "figures.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads((tmp_path / "figures.json").read_text())["rows"]
    rates = {row["what"].split(",")[0]: row["value"] for row in rows if row["section"] == "frames/s"}
    assert set(rates) == {
        "physics",
        "rendering",
        "physics + rendering",
        "bare encode_image",
        "CLIPReward",
        "scoring",
        "end to end",
    }
    assert min(rates.values()) > 0
