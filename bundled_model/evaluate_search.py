"""Measure how well the bundled model resists a search for wrong states: `python -m bundled_model.evaluate_search`.

For each humanoid task and view (front, side, the minimum of both): the highest reward of a state that is wrong by more
than a near miss (`adversary.py`), and the median reward of true poses, of library poses with noise. The goal is that
no wrong state has a higher reward than the median of the true ones.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro

from bundled_model.adversary import FRONT, SIDE, Views, search_wrong, search_wrong_cma
from vlmrm_gym.rewards import models
from vlmrm_gym.tasks import HUMANOID_PROMPTS
from vlmrm_gym.tasks.humanoid_poses import true_states

VIEWS: Mapping[str, tuple[int, ...]] = {"front": (FRONT,), "side": (SIDE,), "minimum": (FRONT, SIDE)}
"""Azimuths of the views; the reward is the minimum over them."""


def main(
    model: Path | None = None,
    look: Literal["textured", "plain"] = "textured",
    optimiser: Literal["evolution", "cma"] = "evolution",
    effort: int = 1,
    seed: int = 1000,
    threads: int = 1,
    tasks: tuple[str, ...] = tuple(HUMANOID_PROMPTS),
) -> None:
    """Search for wrong states, and print a table.

    Args:
        model: Folder with weights and configuration; default: the bundled ones.
        look: The humanoid's look.
        optimiser: The evolution strategy of the training, or the library's CMA-ES.
        effort: The search scores about 1,000 states times this for each task and view.
        seed: Of poses and mutations.
        threads: Of torch.
        tasks: The tasks to measure.
    """
    torch.set_num_threads(threads)
    loaded = models.load("tiny" if model is None else f"local-dir:{model}")
    preprocessing = loaded.preprocessing()
    views = Views(lambda images: loaded.encode_image(preprocessing(images.permute(0, 2, 3, 1))), preprocessing)
    goals = loaded.encode_text([str(prompt) for prompt in HUMANOID_PROMPTS.values()]).numpy()
    goal_of = dict(zip(HUMANOID_PROMPTS, goals, strict=True))
    print(f"{'task':15}" + "".join(f"{view + ': wrong':>15} {'true':>5}" for view in VIEWS) + f"{'seconds':>9}")
    total_met = 0
    for task in tasks:
        start, row = time.monotonic(), f"{task:15}"
        for azimuths in VIEWS.values():
            reward = views.lowest(goal_of[task], look, azimuths)
            true = np.median(reward(true_states(task, 100, np.random.default_rng(seed))))
            if optimiser == "evolution":
                found = search_wrong(task, reward, lines=96, rounds=11 * effort - 1, seed=seed)
            else:
                found = search_wrong_cma(task, reward, evaluations=1056 * effort, seed=seed)
            row += f"{found.scores[0]:15.3f} {true:5.3f}"
            total_met += found.scores[0] <= true
        print(row + f"{time.monotonic() - start:9.0f}", flush=True)
    print(f"{total_met} of {len(tasks) * len(VIEWS)} give no wrong state a higher reward than the median true pose")
    views.close()


if __name__ == "__main__":
    tyro.cli(main)
