"""Requirements of the bundled model: humanoid rewards against success criteria, on states it was not trained on."""

import json

import numpy as np
import pytest
from conftest import HELD_OUT_FOLDER, embed, similarities

from bundled_model.domains import humanoid
from vlmrm_gym.envs.humanoid_success import SUCCESS_CRITERIA, succeeds
from vlmrm_gym.metrics import auc, epic_distance
from vlmrm_gym.rewards import models
from vlmrm_gym.tasks import HUMANOID_PROMPTS

MIN_AUC = {"kneel": 0.95, "stand": 0.95, "arms-raised": 0.95, "splits": 0.95, "lotus": 0.95} | {
    "hands-on-hips": 0.85,
    "arms-crossed": 0.85,
    "one-leg": 0.85,
}
HELD_OUT: dict[str, list[str]] = json.loads((HELD_OUT_FOLDER / "tasks.json").read_text())


@pytest.fixture(scope="module")
def states():
    return humanoid.sample_states(1500, np.random.default_rng(20_000))


@pytest.fixture(scope="module")
def success(states):
    return {task: succeeds(task, states) for task in SUCCESS_CRITERIA}


@pytest.fixture(scope="module", params=["textured", "plain"])
def embeddings(request, states):
    size = models.load("tiny").preprocessing().render_size(*humanoid.SHAPE)
    return embed(humanoid.renderer(*size, look=request.param).render(states))


@pytest.mark.slow
def test_reward_agrees_with_the_success_criterion(embeddings, success):
    """Also by held-out phrasings, almost as well."""
    for task in SUCCESS_CRITERIA:
        assert success[task].sum() >= 15
        reward = similarities(embeddings, [HUMANOID_PROMPTS[task]])[:, 0]
        own, epic = auc(reward, success[task]), epic_distance(reward, success[task])
        others = np.array([auc(reward, success[task]) for reward in similarities(embeddings, HELD_OUT[task]).T])
        print(f"{task}: AUC {own:.3f}, EPIC {epic:.3f}, {success[task].sum()} successes")
        print(f"    held out {others.mean():.3f} on average, {others.min():.3f} at worst")
        assert own >= MIN_AUC[task], task
        assert others.mean() >= own - 0.05, task
