"""Requirements of the bundled model: mountain car."""

import json

import numpy as np
import pytest
from conftest import HELD_OUT_FOLDER, embed, similarities
from scipy.stats import spearmanr

from vlmrm_gym import CLIPReward
from vlmrm_gym.states.classic_control import MountainCarRenderer
from vlmrm_gym.tasks import REGISTERED

TASK = REGISTERED["VLMRM/MountainCarContinuous-v0"]
POSITIONS = np.linspace(-1.2, 0.5, 120)
RIGHT_SLOPE = (POSITIONS >= -0.52) & (POSITIONS <= 0.45)
HELD_OUT: list[str] = json.loads((HELD_OUT_FOLDER / "tasks.json").read_text())["mountain-car"]


@pytest.fixture(scope="module", params=[True, False], ids=["textured", "plain"])
def frames(request):
    """uint8 (positions, 400, 600, 3), as the environment shows them."""
    return MountainCarRenderer(400, 600, textured=request.param).render(POSITIONS[:, None])


def test_reward_rises_on_the_right_slope_and_is_highest_at_the_flag(frames):
    for alpha in (0.0, 0.5, 1.0):
        reward = CLIPReward("tiny", prompt=TASK.prompt, baseline=TASK.baseline, alpha=alpha)(frames)
        rank = spearmanr(reward[RIGHT_SLOPE], POSITIONS[RIGHT_SLOPE]).statistic
        print(f"alpha {alpha}: Spearman {rank:.3f}, highest at {POSITIONS[reward.argmax()]:.2f}")
        assert rank >= 0.9
        assert abs(POSITIONS[reward.argmax()] - 0.45) < 0.1


def test_held_out_prompts(frames):
    """Phrasings that no caption contains: most of them mean the flag."""
    rewards = similarities(embed(frames), HELD_OUT)
    rank = np.array([spearmanr(reward[RIGHT_SLOPE], POSITIONS[RIGHT_SLOPE]).statistic for reward in rewards.T])
    right = (rank >= 0.9) & (np.abs(POSITIONS[rewards.argmax(0)] - 0.45) < 0.15)
    print(f"{right.mean():.0%}", *(text for text, ok in zip(HELD_OUT, right, strict=True) if not ok), sep="\n    ")
    assert right.mean() >= 0.75
