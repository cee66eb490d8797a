"""The bundled small CLIP: weights, the code that makes them again (`train.py`), and what the model does not know."""

from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file

ANCHORS = Path(__file__).parent / "anchors.safetensors"

LEAST_SPREAD = 0.12
"""A familiar prompt's similarity to the pictures of some world varies at least this much (standard deviation)."""

UNKNOWN_PROMPT = (
    "The bundled model does not know what the prompt {prompt!r} means: its reward hardly changes over the scenes that "
    'it was trained on. Pass model="ViT-B-32/laion2b_s34b_b79k" or any other open_clip model, or say it in words about '
    "one of those scenes: cart-pole, mountain car, the humanoid robot."
)


@cache
def _anchors() -> dict[str, torch.Tensor]:
    """Unit vectors of pictures of every world in many states: float32 (N, D) by the world's name."""
    return {name: vectors.float() for name, vectors in load_file(ANCHORS).items()}


def knows(goal: torch.Tensor) -> bool:
    """Whether a goal, float32 (D,), tells the states of some world apart."""
    return any((vectors @ goal.float().cpu()).std() >= LEAST_SPREAD for vectors in _anchors().values())
