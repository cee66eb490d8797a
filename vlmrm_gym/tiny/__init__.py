"""The bundled small CLIP: configuration, weights, and which prompts and scenes it knows. Made by `bundled_model/`."""

import warnings
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file

ANCHORS = Path(__file__).parent / "anchors.safetensors"
SCENES = Path(__file__).parent / "scenes.safetensors"

MIN_SIMILARITY_STD = 0.05
"""Minimum standard deviation of an in-domain prompt's similarity to the anchors of at least one scene."""
MIN_UNKNOWN_SHARE = 0.25
"""Share of unknown frames, among all that a reward has scored so far, at which it warns."""

_ADVICE = (
    'Pass model="ViT-B-32/laion2b_s34b_b79k" or any other open_clip model, or {alternative} one of those scenes: '
    "cart-pole, mountain car, the humanoid robot."
)
OUT_OF_DOMAIN = (
    "The bundled model does not know what the prompt {prompt!r} means: its reward hardly varies over the scenes that "
    "it was trained on. " + _ADVICE.replace("{alternative}", "describe")
)
UNKNOWN_SCENE = (
    "The bundled model does not know this scene: frames look unlike those that it was trained on, so their rewards "
    "mean little, whatever the prompt. " + _ADVICE.replace("{alternative}", "use")
)


@cache
def _anchors() -> dict[str, torch.Tensor]:
    """Embeddings of renders of each training scene in many states: unit vectors, float32 (N, D), by scene."""
    return {name: vectors.float() for name, vectors in load_file(ANCHORS).items()}


def in_domain(goal: torch.Tensor) -> bool:
    """Whether the reward of a goal, a unit vector, float32 (D,), varies over the states of any training scene."""
    return any((vectors @ goal.float().cpu()).std() >= MIN_SIMILARITY_STD for vectors in _anchors().values())


@cache
def _scenes(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Means, float32 (K, 1, D), and scaled whitenings, float32 (K, D, D), of K scenes; see `bundled_model.scenes`."""
    stored = load_file(SCENES)
    return stored["means"][:, None].to(device), stored["whitenings"].to(device)


def scene_distance(features: torch.Tensor) -> torch.Tensor:
    """Mahalanobis distance of frames to the nearest training scene: unit vectors, float32 (B, D), to float32 (B,).

    1 is the limit of what counts as known.
    """
    means, whitenings = _scenes(features.device)
    return torch.linalg.vector_norm((features - means) @ whitenings, dim=2).amin(0)


class SceneWatch:
    """Warns once of frames that are unlike the training scenes, when they are a quarter of all frames so far."""

    def __init__(self) -> None:
        self._num_frames = self._num_unknown = 0
        self._warned = False

    def __call__(self, features: torch.Tensor) -> None:
        """Look at frames' embeddings: unit vectors, float32 (B, D)."""
        if self._warned:
            return
        self._num_frames += len(features)
        self._num_unknown += int((scene_distance(features) > 1).sum())
        if self._num_unknown >= MIN_UNKNOWN_SHARE * self._num_frames:
            self._warned = True
            warnings.warn(UNKNOWN_SCENE, stacklevel=4)
