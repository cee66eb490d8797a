"""Requirements of the bundled model: humanoid rewards against success criteria, on states it was not trained on."""

import json

import numpy as np
import pytest
from conftest import HELD_OUT_FOLDER, embed, similarities

from bundled_model.domains import humanoid
from vlmrm_gym.data.metrics import auc, epic_distance
from vlmrm_gym.rewards import models
from vlmrm_gym.tasks import HUMANOID_PROMPTS
from vlmrm_gym.tasks.humanoid_success import SUCCESS_CRITERIA, succeeds

MIN_AUC = dict.fromkeys(SUCCESS_CRITERIA, 0.95) | dict.fromkeys(("hands-on-hips", "arms-crossed", "one-leg"), 0.85)
HELD_OUT: dict[str, list[str]] = json.loads((HELD_OUT_FOLDER / "tasks.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("look", ["textured", "plain"])
def test_reward_agrees_with_the_success_criterion(look):
    """Also by held-out phrasings, almost as well."""
    states = humanoid.sample_states(1500, np.random.default_rng(20_000))
    size = models.load("tiny").preprocessing().render_size(*humanoid.SHAPE)
    embeddings = embed(humanoid.renderer(*size, look=look).render(states))
    for task in SUCCESS_CRITERIA:
        success = succeeds(task, states)
        assert success.sum() >= 15
        reward = similarities(embeddings, [HUMANOID_PROMPTS[task]])[:, 0]
        own, epic = auc(reward, success), epic_distance(reward, success)
        others = np.array([auc(reward, success) for reward in similarities(embeddings, HELD_OUT[task]).T])
        print(f"{task}: AUC {own:.3f}, EPIC {epic:.3f}, {success.sum()} successes")
        print(f"    held out {others.mean():.3f} on average, {others.min():.3f} at worst")
        assert own >= MIN_AUC[task], task
        assert others.mean() >= own - 0.05, task
