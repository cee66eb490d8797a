"""What the bundled model's scenes look like to it, for its warning about frames of other scenes.

    python -m bundled_model.scenes  # writes vlmrm_gym/rewards/tiny/scenes.safetensors; measured by evaluate_scenes.py

Frames of every scene, of any state that an episode may reach, are looked at: the mean and covariance of their
activations give `vlmrm_gym.rewards.tiny.scenes.distance`, in units of the largest distance of these frames times
`MARGIN`. Cart-pole and mountain car are also looked at in the resize modes that keep the aspect ratio; the humanoid's
frames are square. Frames of videos, and those of which every second or fourth pixel was taken, have statistics of their
own.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import imageio.v3 as iio
import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from safetensors.torch import save_file

from bundled_model.domain import Domain
from bundled_model.domains import DOMAINS, humanoid
from vlmrm_gym.rewards import models
from vlmrm_gym.rewards.clip import ResizeMode
from vlmrm_gym.rewards.models import Preprocessing
from vlmrm_gym.rewards.tiny import scenes
from vlmrm_gym.states.states import Renderer

MARGIN = 1.3
"""The limit of what counts as known, in units of the largest distance of the frames that the statistics are made of."""
VARIANCE = 3e-4
"""Added to every variance, as a fraction of their mean: activations differ a little between precisions."""
SIZES = ((96, 0.05), (192, 0.65), (480, 0.3))
"""Height of frames in pixels, and the fraction of states drawn at it. Most are drawn at 192: see `MIN_RENDER_SIZE`."""
RECORDED_SIZE = 480
"""Height of the frames that are also looked at as `recorded`."""
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


def recorded(frames: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Frames, uint8 (B, H, W, 3), with every first, second or fourth pixel kept; half of the time out of a video."""
    step = rng.choice([1, 2, 4])
    frames = frames[:, ::step, ::step]
    if rng.random() < 0.5:
        return frames
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/frames.mp4"
        iio.imwrite(path, frames, fps=30, quality=int(rng.choice([3, 5, 8])), macro_block_size=2)
        return np.stack(list(iio.imiter(path)))


def activations(frames: NDArray[np.uint8], preprocessing: Preprocessing) -> torch.Tensor:
    """Activations of the bundled model that its warning looks at: uint8 (B, H, W, 3) to float32 (B, C)."""
    model = models.load("tiny", "cpu")
    images = preprocessing(torch.from_numpy(np.ascontiguousarray(frames)))
    return model.network.visual(images.to(model.dtype))[1]


def main(out: Path = scenes.FILE, states: int = 6_000, seed: int = 40_000, threads: int = 1) -> None:
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
        found_in: list[list[torch.Tensor]] = [[] for _ in seen]
        found_in.append([])
        for frames in draw(domain, sampled):
            for found, preprocessing in zip(found_in, seen, strict=False):
                found.append(activations(frames, preprocessing))
            if frames.shape[1] >= RECORDED_SIZE:
                found_in[-1].append(activations(recorded(frames, rng), seen[0]))
        for found in found_in:
            mean, whitening = _statistics(torch.cat(found).double())
            means.append(mean)
            whitenings.append(whitening)
        print(f"{name}: {[sum(map(len, found)) for found in found_in]} frames", flush=True)
    save_file({"means": torch.stack(means).float(), "whitenings": torch.stack(whitenings).float()}, out)


def _statistics(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean, (C,), and whitening, (C, C): ||(x - mean) @ whitening|| is 1 / `MARGIN` for the farthest row."""
    mean = rows.mean(0)
    covariance = rows.T.cov()
    covariance += VARIANCE * covariance.diagonal().mean() * torch.eye(len(covariance), dtype=covariance.dtype)
    whitening = torch.linalg.inv(torch.linalg.cholesky(covariance)).T
    farthest = torch.linalg.vector_norm((rows - mean) @ whitening, dim=1).max()
    return mean, whitening / (MARGIN * farthest)


if __name__ == "__main__":
    tyro.cli(main)
