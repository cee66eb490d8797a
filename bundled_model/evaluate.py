"""Measure the bundled model: its rewards against the success criteria, on states that it was not trained on.

    python -m bundled_model.evaluate

Humanoid, for each task: with the paper's prompt, the AUC (probability that a success gets a higher reward than a
failure) and the EPIC distance (VLM-RM, appendix A) of the reward to the 0/1 labels; with the held-out prompts in
tests/bundled_model/heldout/tasks.json, which no training caption contains, the mean and the
lowest AUC; from several azimuths, the AUC of each view and of the minimum and mean of front and side. Mountain car:
Spearman's correlation of the reward with the position on the right slope, and the position of the highest reward.
How well it resists a search for wrong states is measured by `python -m bundled_model.evaluate_search`.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import tyro
from scipy.stats import spearmanr

from bundled_model.domains import humanoid
from vlmrm_gym.data.metrics import auc, epic_distance
from vlmrm_gym.rewards import models
from vlmrm_gym.states.classic_control import MountainCarRenderer
from vlmrm_gym.tasks import HUMANOID_PROMPTS, REGISTERED
from vlmrm_gym.tasks.humanoid_success import succeeds

AZIMUTHS = (180, 90, 270, 135, 225)
"""Front, side, the other side, and three quarters, in degrees; "minimum" and "mean" are of the first two."""
HELD_OUT = Path(__file__).parents[1] / "tests" / "bundled_model" / "heldout" / "tasks.json"


def main(states: int = 4000, seed: int = 20_000, held_out: Path = HELD_OUT) -> None:
    """Measure the bundled model.

    Args:
        states: Number of humanoid states, scored with and without textures.
        seed: Seed of the states; must differ from that of the training.
        held_out: JSON file of prompts by task.
    """
    prompts: dict[str, list[str]] = json.loads(held_out.read_text())
    sample = humanoid.sample_states(states, np.random.default_rng(seed))
    _measure_humanoid(sample, prompts)
    _measure_views(sample)
    _measure_mountain_car()


def _measure_humanoid(states: np.ndarray, prompts: dict[str, list[str]]) -> None:
    size = models.load("tiny").preprocessing().render_size(*humanoid.SHAPE)
    print(f"{'humanoid':10} {'task':15} {'successes':>9} {'AUC':>6} {'EPIC':>6} {'held out':>9} {'lowest':>6}")
    for look in humanoid.LOOKS:
        reward = _reward_function(humanoid.renderer(*size, look=look).render(states))
        for task, prompt in HUMANOID_PROMPTS.items():
            success, rewards = succeeds(task, states), reward(str(prompt))
            figures = f"{success.sum():9} {auc(rewards, success):6.3f} {epic_distance(rewards, success):6.3f}"
            others = [auc(reward(text), success) for text in prompts[task]]
            print(f"{look:10} {task:15} {figures} {np.mean(others):9.3f} {np.min(others):6.3f}", flush=True)


def _measure_views(states: np.ndarray) -> None:
    """AUC from other azimuths, and of the minimum and the mean of front and side, textured."""
    size = models.load("tiny").preprocessing().render_size(*humanoid.SHAPE)
    rewards = {
        f"{azimuth}": _reward_function(humanoid.renderer(*size, azimuth=azimuth).render(states)) for azimuth in AZIMUTHS
    }
    print(f"{'AUC':15}" + "".join(f"{name:>8}" for name in (*rewards, "minimum", "mean")))
    for task, prompt in HUMANOID_PROMPTS.items():
        success, views = succeeds(task, states), [reward(str(prompt)) for reward in rewards.values()]
        both = np.stack(views[:2])
        columns = [*views, both.min(0), both.mean(0)]
        print(f"{task:15}" + "".join(f"{auc(column, success):8.3f}" for column in columns), flush=True)


def _measure_mountain_car() -> None:
    task = REGISTERED["VLMRM/MountainCarContinuous-v0"]
    positions = np.linspace(-1.2, 0.5, 171)
    slope = (positions >= -0.52) & (positions <= 0.45)
    for name, textured in (("textured", True), ("plain", False)):
        renderer = MountainCarRenderer(192, 288, textured=textured)
        rewards = _reward_function(renderer.render(positions[:, None]))(str(task.prompt))
        rank, _ = spearmanr(rewards[slope], positions[slope])
        print(f"mountain car, {name}: Spearman {rank:.3f}, highest at {positions[rewards.argmax()]:+.2f} (flag +0.45)")


def _reward_function(frames: np.ndarray) -> Callable[[str], np.ndarray]:
    """From a prompt to the rewards of frames, float32 (N,), for alpha = 0: the cosine similarity."""
    model = models.load("tiny")
    preprocess = model.preprocessing()
    batches = torch.from_numpy(frames).split(64)
    embeddings = torch.cat([model.encode_image(preprocess(batch)) for batch in batches]).numpy()
    return lambda prompt: embeddings @ model.encode_text([prompt]).numpy()[0]


if __name__ == "__main__":
    tyro.cli(main)
