"""Benchmarks run, also on a machine without a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def run(program, *arguments):
    """The last line that it prints."""
    command = [sys.executable, f"benchmarks/{program}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def test_every_stage_of_scoring_has_a_rate(tmp_path):
    flags = "--env VLMRM/CartPole-v1 --device cpu --num-envs 1 --num-workers 1 --seconds 0.1"
    run("fps.py", *flags.split(), "--no-reference", "--sparse", "off", "--json", tmp_path / "figures.json")
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


def test_variants_of_the_single_file_of_sac_have_rates_and_their_ratios():
    flags = "--num-envs 1 --episode-length 20 --batch-size 16 --no-textured"
    variants = (f"--variant={flags}", f"--variant={flags} --score-every 4")
    line = run("sac_updates.py", "--rounds", 1, "--steps", 20, "--env-id", "VLMRM/MountainCarContinuous-v0", *variants)
    name, *rates = line.strip("| ").split(" | ")
    assert name == f"{flags} --score-every 4"
    assert len(rates) == 4
    assert all(float(rate) > 0 for rate in rates)


def test_a_checkout_pays_what_it_pays_and_is_compared_part_by_part():
    case = "CartPole-v1, 1 view, callable, every 4th"
    line = run("compare_rewards.py", ROOT, "--only", case)
    assert line == f"Largest of 1 cases, 30 rewards: 0.0e+00 (VLMRM/{case}: rewards)"
    line = run("compare_speed.py", ROOT, "--rounds", 1, "--seconds", 0.1, "--parts", "cart-pole, step")
    name, own, other, ratio, *peaks = line.strip("| ").split(" | ")
    assert name == "cart-pole, step"
    assert min(map(float, (own, other, ratio, *peaks[:2]))) > 0
