"""Shared by all tests. Nothing here or below may download anything."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
os.environ.setdefault("MUJOCO_GL", "egl")  # read when mujoco is imported: its own renderer needs to be told

from pathlib import Path

import numpy as np
import pytest

import vlmrm_gym  # noqa: F401  (registers the IDs)
from vlmrm_gym.envs import CartPole
from vlmrm_gym.rewards import models

HELD_OUT_FOLDER = Path(__file__).parent / "heldout"
TASK_PROMPT = "pole vertically upright on top of the cart"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def cartpole_frame(angle: float, position: float = 0.0) -> np.ndarray:
    """What cart-pole looks like: uint8 (400, 600, 3) for an angle in degrees and a cart position."""
    env = CartPole(render_mode="rgb_array")
    env.reset()
    env.state = np.array([position, 0.0, np.deg2rad(angle), 0.0])
    frame = env.render()
    assert frame is not None
    return frame


def embed(frames: np.ndarray) -> np.ndarray:
    """The bundled model's unit vectors of frames, float32 (B, D)."""
    import torch

    model = models.load("tiny")
    preprocess = model.preprocessing()
    batches = np.array_split(frames, max(1, len(frames) // 64))
    return torch.cat([model.encode_image(preprocess(torch.from_numpy(batch))) for batch in batches]).numpy()


def similarities(embeddings: np.ndarray, texts: list[str]) -> np.ndarray:
    """Cosine similarities (..., texts) of unit vectors (..., D)."""
    return embeddings @ models.load("tiny").encode_text(texts).numpy().T
