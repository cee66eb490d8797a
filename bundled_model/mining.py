"""Training data that the model itself points to: humanoid states whose rewards are wrong, found by searches.

Each search follows the reward of one task, in one look, from one view or under the minimum of two: to wrong states
with high rewards, and to true states with low rewards. Everything that was drawn on the way is graded, and the
images with the largest errors are kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from bundled_model.adversary import FRONT, SIDE, Encode, Views, mutate, search_wrong
from bundled_model.domain import Attributes
from bundled_model.domains.humanoid import LOOKS, describe, similarity
from bundled_model.evolution import evolve
from vlmrm_gym.rewards.models import Preprocessing
from vlmrm_gym.tasks.humanoid_poses import true_states
from vlmrm_gym.tasks.humanoid_success import succeeds

TASK_ATTRIBUTES: Mapping[str, Attributes] = {
    "kneel": (("posture", "kneel"),),
    "lotus": (("posture", "lotus"),),
    "stand": (("posture", "stand"),),
    "arms-raised": (("arms", "raised"), ("posture", "stand")),
    "splits": (("posture", "splits"),),
    "hands-on-hips": (("arms", "hips"), ("posture", "stand")),
    "arms-crossed": (("arms", "crossed"), ("posture", "stand")),
    "one-leg": (("posture", "one_leg"),),
}
"""What the prompts of the tasks state."""
_VIEWS = ((FRONT,), (SIDE,), (270,), (135,), (225,), (FRONT, SIDE))
"""Azimuths that a search looks from, by turns; the last one, the minimum, in every second search."""


@dataclass(frozen=True, kw_only=True)
class Mined:
    """Humanoid states whose rewards were wrong, each with its image."""

    states: NDArray[np.float64]
    """float64 (M, 24)."""
    images: torch.Tensor
    """uint8 (M, 3, height, width)."""


def mine(
    encode: Encode,
    preprocessing: Preprocessing,
    goals: NDArray[np.float32],
    *,
    count: int,
    lines: int,
    rounds: int,
    seed: int,
) -> Mined:
    """Search for states whose rewards are wrong.

    Args:
        encode: The image tower.
        preprocessing: Of the image tower.
        goals: Unit vectors of the tasks, float32 (8, D), in the order of `TASK_ATTRIBUTES`.
        count: How many images are kept at most.
        lines: Lines of descent of each search.
        rounds: Rounds of mutation of each search.
        seed: The same seed and model give the same states.
    """
    views = Views(encode, preprocessing, keep=True)
    pairs = [(task, look) for task in TASK_ATTRIBUTES for look in LOOKS]
    for i, (task, look) in enumerate(tqdm(pairs, desc="mining")):
        goal, own_seed = goals[list(TASK_ATTRIBUTES).index(task)], seed + 100 * i
        for j, azimuths in enumerate(
            (_VIEWS[-1], (FRONT,), _VIEWS[1 + (i + seed) % 2], _VIEWS[3 + (i // 2 + seed) % 2])
        ):
            reward = views.lowest(goal, look, azimuths)
            search_wrong(task, reward, lines=lines, rounds=rounds, seed=own_seed + j)
            true = true_states(task, lines // 2, np.random.default_rng(own_seed + j))
            evolve(
                lambda states, reward=reward: -reward(states),
                lambda states, task=task: succeeds(task, states),
                true,
                mutate,
                rounds=max(1, rounds // 3),
                seed=own_seed + j,
            )
    views.close()
    states, images, vectors = zip(*views.drawn, strict=True)
    return _largest_errors(np.concatenate(states), torch.cat(images), torch.cat(vectors).numpy() @ goals.T, count)


def _largest_errors(
    states: NDArray[np.float64], images: torch.Tensor, rewards: NDArray[np.float32], count: int
) -> Mined:
    described = describe(states)
    truth = np.stack([similarity(attributes, described) for attributes in TASK_ATTRIBUTES.values()], axis=1)
    error = np.abs(rewards - truth).max(axis=1)
    kept = np.sort(np.argsort(-error, kind="stable")[:count])
    print(f"mined {len(states)} images, kept {len(kept)} with errors of {error[kept].min():.2f} to {error.max():.2f}")
    return Mined(states=states[kept], images=images[torch.from_numpy(kept)])
