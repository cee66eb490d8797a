"""The bundled small CLIP: configuration, weights, and which prompts are in its domain; `scenes` has which frames are.

Made by `bundled_model/`. open_clip reads this folder, too: as model="local-dir:...".
"""

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

import torch
from safetensors.torch import load_file

from vlmrm_gym.rewards.tiny.network import Network, make_network

FOLDER = Path(__file__).parent
ANCHORS = FOLDER / "anchors.safetensors"

MIN_SIMILARITY_STD = 0.05
"""Minimum standard deviation of an in-domain prompt's similarity to the anchors of at least one scene."""

OUT_OF_DOMAIN = (
    "The bundled model does not know what the prompt {prompt!r} means: its reward hardly varies over the scenes that "
    'it was trained on. Pass model="ViT-B-32/laion2b_s34b_b79k" or any other open_clip model, or describe one of those '
    "scenes: cart-pole, mountain car, the humanoid robot."
)


def load(dtype: torch.dtype) -> tuple[Network, Any, dict[str, Any]]:
    """Load the network, its tokenizer, and its preprocessing in open_clip's terms."""
    network = make_network(load_file(FOLDER / "open_clip_model.safetensors"), dtype)
    config = json.loads((FOLDER / "open_clip_config.json").read_text())
    return network, _load_tokenizer(), config["preprocess_cfg"]


def _load_tokenizer() -> Any:
    """Load open_clip's tokenizer from its file, which needs no other one: the package takes seconds, and 0.25 GB."""
    package = find_spec("open_clip")  # does not import it
    assert package is not None
    assert package.origin is not None
    return run_path(str(Path(package.origin).with_name("tokenizer.py")))["SimpleTokenizer"]()


@cache
def _anchors() -> dict[str, torch.Tensor]:
    """Load the embeddings of renders of each training scene in many states: unit vectors, float32 (N, D), by scene."""
    return {name: vectors.float() for name, vectors in load_file(ANCHORS).items()}


def in_domain(goal: torch.Tensor) -> bool:
    """Tell whether the reward of a goal, a unit vector, float32 (D,), varies over the states of any training scene."""
    return any((vectors @ goal.float().cpu()).std() >= MIN_SIMILARITY_STD for vectors in _anchors().values())
