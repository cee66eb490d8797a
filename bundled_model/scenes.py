"""What the bundled model's scenes look like to it, for its warning about frames of other scenes.

    python -m bundled_model.scenes            # writes vlmrm_gym/tiny/scenes.safetensors; measured by evaluate_scenes.py

Frames of every scene, of any state that an episode may reach, are embedded. Their mean and covariance give a
Mahalanobis distance, in units of the largest distance of these frames times `MARGIN`: `tiny.scene_distance`. Cart-pole
and mountain car are also looked at with the resize modes that keep the aspect ratio; the humanoid's frames are square.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from safetensors.torch import save_file

from bundled_model.domain import Domain
from bundled_model.domains import DOMAINS, humanoid
from vlmrm_gym import tiny
from vlmrm_gym.rendering.renderer import Renderer
from vlmrm_gym.rewards import models
from vlmrm_gym.rewards.clip_options import ResizeMode
from vlmrm_gym.rewards.preprocessing import Preprocessing

MARGIN = 1.25
"""The limit of what counts as known, in units of the largest distance of the frames that the statistics are made of."""
VARIANCE = 1e-6
"""Added to every variance: features in bfloat16 differ by about 2e-4."""
SIZES = ((96, 0.05), (192, 0.7), (480, 0.25))
"""Height of frames in pixels, and the fraction of states drawn at it. Most are drawn at 192: see `MIN_RENDER_SIZE`."""
AROUND = (0, 90, 180, 270)
"""Azimuths of the cameras of "around", which "front-side" and "side" are part of."""
_FAITHFUL_SHARE = 0.04
"""Fraction of humanoid states drawn in the quality "faithful", which takes ten times as long."""


def preprocessings(name: str) -> list[Preprocessing]:
    """The bundled model's preprocessings that give different images of a domain."""
    modes: tuple[ResizeMode, ...] = ("squash",) if name == "humanoid" else get_args(ResizeMode)
    return [models.load("tiny", "cpu").preprocessing(mode) for mode in modes]


def renderers(domain: Domain) -> Iterator[tuple[Renderer, float]]:
    """Renderers in all looks, views and sizes, each with the fraction of states that it draws."""
    for pixels, size_share in SIZES:
        height, width = pixels, round(pixels * domain.shape[1] / domain.shape[0])
        for renderer, share in domain.renderers(height, width):
            yield renderer, share * size_share * (1 - _FAITHFUL_SHARE * (domain is humanoid.DOMAIN))
    if domain is humanoid.DOMAIN:
        for look in humanoid.LOOKS:
            for azimuth in AROUND:
                faithful = humanoid.renderer(192, 192, look=look, azimuth=azimuth, quality="faithful")
                yield faithful, _FAITHFUL_SHARE / (len(humanoid.LOOKS) * len(AROUND))


def draw(domain: Domain, states: NDArray[np.float64]) -> Iterator[NDArray[np.uint8]]:
    """States by all renderers, in batches of frames, uint8 (B, H, W, 3)."""
    start = 0.0
    for renderer, share in renderers(domain):
        own = states[round(start * len(states)) : round((start + share) * len(states))]
        start += share
        for first in range(0, len(own), 64):
            yield renderer.render(own[first : first + 64])
        renderer.close()


def embed(frames: NDArray[np.uint8], preprocessing: Preprocessing) -> torch.Tensor:
    """Embeddings by the bundled model: uint8 (B, H, W, 3) to unit vectors, float32 (B, D)."""
    return models.load("tiny", "cpu").encode_image(preprocessing(torch.from_numpy(np.ascontiguousarray(frames))))


def main(out: Path = tiny.SCENES, states: int = 12_000, seed: int = 40_000, threads: int = 1) -> None:
    """Write the statistics.

    Args:
        out: The file.
        states: Number of states of each domain; twice as many of the humanoid.
        seed: Of the states.
        threads: Of torch.
    """
    torch.set_num_threads(threads)
    rng = np.random.default_rng(seed)
    means: list[torch.Tensor] = []
    whitenings: list[torch.Tensor] = []
    for name, domain in DOMAINS.items():
        sampled = domain.sample_states(states * (2 if name == "humanoid" else 1), rng)
        seen = preprocessings(name)
        features: list[list[torch.Tensor]] = [[] for _ in seen]
        for frames in draw(domain, sampled):
            for found, preprocessing in zip(features, seen, strict=True):
                found.append(embed(frames, preprocessing))
        for found, preprocessing in zip(features, seen, strict=True):
            mean, whitening = _statistics(torch.cat(found).double())
            means.append(mean)
            whitenings.append(whitening)
            print(f"{name}, {preprocessing.resize_mode}: {len(sampled)} frames", flush=True)
    save_file({"means": torch.stack(means).float(), "whitenings": torch.stack(whitenings).float()}, out)


def _statistics(features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean, (D,), and whitening, (D, D): ||(x - mean) @ whitening|| is `MARGIN`'s inverse for the farthest feature."""
    mean = features.mean(0)
    covariance = features.T.cov() + VARIANCE * torch.eye(features.shape[1], dtype=features.dtype)
    whitening = torch.linalg.inv(torch.linalg.cholesky(covariance)).T
    farthest = torch.linalg.vector_norm((features - mean) @ whitening, dim=1).max()
    return mean, whitening / (MARGIN * farthest)


if __name__ == "__main__":
    tyro.cli(main)
