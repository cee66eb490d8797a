"""examples/torchrl_sac.py learns in TorchRL's words, and leaves what it promises."""

import json

import pytest
import torch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]


def test_a_short_run_learns_and_writes_a_policy_and_a_result(tmp_path):
    pytest.importorskip("torchrl", reason='it needs the extra "torchrl"')
    import torchrl_sac

    args = torchrl_sac.Args(
        total_frames=1_200,
        learning_starts=960,
        num_envs=2,
        frames_per_batch=80,
        updates_per_frame=0.2,
        selection_frequency=500,
        eval_episodes=2,
        runs_folder=tmp_path,
    )
    folder = torchrl_sac.main(args)
    result = json.loads((folder / "result.json").read_text())
    assert 0 <= result["success"] <= 1
    assert result["args"]["total_frames"] == 1_200
    assert any(tensor.abs().sum() > 0 for tensor in torch.load(folder / "policy.pt").values())
