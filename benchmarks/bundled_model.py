"""How well the bundled model knows its worlds: rewards against judges, on states that it was not trained on.

    python benchmarks/bundled_model.py

Humanoid, for each task with the paper's prompt: the AUC (how often a success is rewarded more than a failure), the EPIC
distance (VLM-RM, appendix A) of reward and judge, and the AUC of the held-out phrasings in tests/heldout/worlds.json,
which no training caption contains: mean and worst. Mountain car: Spearman's correlation with the position on the right
slope, and where the reward is highest.
"""

import json
from pathlib import Path

import numpy as np
import torch
import tyro
from scipy.stats import spearmanr

from vlmrm_gym.agreement import auc, epic_distance
from vlmrm_gym.envs.humanoid_judges import succeeds
from vlmrm_gym.rendering.classic_control import MountainCarRenderer
from vlmrm_gym.rewards import models
from vlmrm_gym.tasks import HUMANOID_PROMPTS, TASKS
from vlmrm_gym.tiny.worlds import WORLDS

HELD_OUT = Path(__file__).parents[1] / "tests" / "heldout" / "worlds.json"


def main(states: int = 4000, seed: int = 20_000, held_out: Path = HELD_OUT) -> None:
    """Measure the bundled model.

    Args:
        states: How many humanoid states to judge and to score, in each look.
        seed: Of the states; not that of the training.
        held_out: Phrasings by task, JSON.
    """
    phrasings: dict[str, list[str]] = json.loads(held_out.read_text())
    model = models.load("tiny")
    preprocess = model.preprocessing()

    def embed(frames: np.ndarray) -> np.ndarray:
        return torch.cat(
            [model.encode_image(preprocess(batch)) for batch in torch.from_numpy(frames).split(64)]
        ).numpy()

    def score(embedded: np.ndarray, prompt: str) -> np.ndarray:
        """The reward for alpha = 0: the cosine similarity."""
        return embedded @ model.encode_text([prompt]).numpy()[0]

    humanoid = WORLDS["humanoid"]
    sample = humanoid.sample_states(states, np.random.default_rng(seed))
    size = preprocess.size_to_draw(*humanoid.shape)
    looks = [renderer for renderer, share in humanoid.looks(*size) if share > 0.1]  # without the faithful ones
    print(f"{'humanoid':10} {'task':15} {'successes':>9} {'AUC':>6} {'EPIC':>6} {'held out':>9} {'worst':>6}")
    for name, renderer in zip(("textured", "plain"), looks, strict=True):
        embedded = embed(renderer.render(sample))
        for task, prompt in HUMANOID_PROMPTS.items():
            success, reward = succeeds(task, sample), score(embedded, str(prompt))
            figures = f"{success.sum():9} {auc(reward, success):6.3f} {epic_distance(reward, success):6.3f}"
            others = [auc(score(embedded, text), success) for text in phrasings[task]]
            print(f"{name:10} {task:15} {figures} {np.mean(others):9.3f} {np.min(others):6.3f}", flush=True)
    task = next(task for task in TASKS if task.world == "MountainCar")
    positions = np.linspace(-1.2, 0.5, 171)
    slope = (positions >= -0.52) & (positions <= 0.45)
    for name, textured in (("textured", True), ("plain", False)):
        renderer = MountainCarRenderer(192, 288, textured=textured)
        reward = score(embed(renderer.render(positions[:, None])), str(task.prompt))
        rank, _ = spearmanr(reward[slope], positions[slope])
        print(f"mountain car, {name}: Spearman {rank:.3f}, highest at {positions[reward.argmax()]:+.2f} (flag +0.45)")


if __name__ == "__main__":
    tyro.cli(main)
