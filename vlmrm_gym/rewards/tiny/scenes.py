"""Warns of frames that are unlike the scenes that the bundled model was trained on.

Embeddings cannot tell: many scenes look to the last layer like one of its own. The first stage of the image tower can.
Its mean activations, (C,) of each frame, have a mean and a covariance in every training scene, and so a Mahalanobis
distance to it. `bundled_model/scenes.py` makes the statistics, `bundled_model/evaluate_scenes.py` measures the warning.
"""

import warnings
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file

FILE = Path(__file__).parent / "scenes.safetensors"

MIN_UNKNOWN_SHARE = 0.25
"""Share of unknown frames, among all that a reward has scored so far, at which it warns."""

UNKNOWN_SCENE = (
    "The bundled model does not know this scene: frames look unlike those that it was trained on, so their rewards "
    'mean little, whatever the prompt. Pass model="ViT-B-32/laion2b_s34b_b79k" or any other open_clip model. The '
    "bundled one knows cart-pole, mountain car and the humanoid robot, as this package draws them."
)


@cache
def _statistics(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Means, float32 (K, 1, C), and scaled whitenings, float32 (K, C, C), of K scenes."""
    stored = load_file(FILE)
    return stored["means"][:, None].to(device), stored["whitenings"].to(device)


def distance(activations: torch.Tensor) -> torch.Tensor:
    """Measure how far frames are from the nearest training scene: float32 (B, C) to (B,). Above 1 they are unknown."""
    means, whitenings = _statistics(activations.device)
    return torch.linalg.vector_norm((activations - means) @ whitenings, dim=2).amin(0)


class SceneWatch:
    """Warns once, when a quarter of the frames that a reward has scored so far are unknown."""

    def __init__(self) -> None:
        self._num_frames = self._num_unknown = 0
        self.has_warned = False
        """Whether there is nothing more to look for."""

    def look(self, distances: torch.Tensor) -> None:
        """Look at a batch that the bundled model has encoded, by the `distance` of each frame, float32 (B,)."""
        if self.has_warned:
            return
        self._num_frames += len(distances)
        self._num_unknown += int((distances > 1).sum())
        if self._num_unknown >= MIN_UNKNOWN_SHARE * self._num_frames:
            self.has_warned = True
            warnings.warn(UNKNOWN_SCENE, stacklevel=5)
