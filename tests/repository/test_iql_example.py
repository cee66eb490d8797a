"""examples/iql_minari.py learns from the rewards that a dataset has, and leaves what it promises."""

import json

import iql_minari
import numpy as np
import pytest
import torch
from conftest import LIBRARIES_WARN

from vlmrm_gym.tools.cli.dataset import record_dataset
from vlmrm_gym.tools.cli.score import score

pytestmark = [pytest.mark.slow, LIBRARIES_WARN]
MOUNTAIN_CAR = "VLMRM/MountainCarContinuous-v0"


def test_a_short_run_on_a_relabelled_dataset(tmp_path):
    source = record_dataset(MOUNTAIN_CAR, out=tmp_path / "cars", episodes=2, steps=20)
    scored = score(source, prompt="a car at the peak of the mountain", out=tmp_path / "scored")
    data = iql_minari.read((scored, scored))
    assert {len(column) for column in data.values()} == {80}
    np.testing.assert_allclose([data["paid"].mean(), data["paid"].std()], [0, 1], atol=1e-5)
    np.testing.assert_array_equal(data["next"][:19], data["seen"][1:20])
    result = iql_minari.main(
        iql_minari.Args(datasets=(scored,), steps=20, batch_size=16, episodes=2, runs_folder=tmp_path / "runs")
    )
    folder = tmp_path / "runs" / "iql__1"
    assert json.loads((folder / "result.json").read_text())["success"] == result["success"]
    assert torch.load(folder / "agent.pt")["mean"].shape == (2,)


def test_the_agent_prefers_what_is_paid():
    """Two actions in one state, of which the data take the better one in one of ten cases."""
    torch.manual_seed(0)
    paid = torch.zeros(1_000)
    paid[::10] = 1
    data = {
        "seen": torch.randn(1_000, 1),
        "acted": (2 * paid - 1)[:, None],
        "paid": paid,
        "next": torch.randn(1_000, 1),
    }
    data["ended"] = torch.ones(1_000)
    bounds = -np.ones(1, np.float32), np.ones(1, np.float32)
    args = iql_minari.Args(datasets=(), steps=400, learning_rate=3e-3, tau=0.9, beta=10)
    better = iql_minari.learn(args, data, *bounds).act(np.zeros((1, 1)))
    cloned = iql_minari.learn(iql_minari.Args(datasets=(), steps=400, learning_rate=3e-3, beta=0), data, *bounds)
    assert better > 0.5 > 0 > cloned.act(np.zeros((1, 1)))
