"""Fits a network to videos: how far apart in time two frames are (TimeRewarder, arXiv 2509.26627)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F

from vlmrm_gym._util.validation import check_fraction, check_not_negative
from vlmrm_gym.rewards.clip import check_count, checked
from vlmrm_gym.rewards.distance import BINS, SIZE, DistanceNetwork

_GROUPS, _CLUSTERS, _NEAR = 8, 2, 4
"""Of a gradient step: videos, places in each, and frames around each place."""
_SHORT = 0.05
"""Mean distance of a frame from its place, of a video's length."""
_HELD_OUT_STEPS = 8
"""Draws of pairs that the held-out loss is the mean of."""
_SHIFT = 4
"""Pixels by which pictures are moved, at most."""
_COLOUR = 0.15
"""Standard deviation of the change of brightness, contrast, and of each channel."""


@dataclass(frozen=True, kw_only=True)
class VideoFitOptions:
    """Options of fitting a network to videos."""

    steps: int = field(default=2_000, metadata={"check": check_count})
    """Gradient steps, at most."""
    learning_rate: float = field(default=1e-3, metadata={"check": check_not_negative})
    """Learning rate of AdamW."""
    weight_decay: float = field(default=1e-2, metadata={"check": check_not_negative})
    """Weight decay of AdamW."""
    held_out: float = field(default=0.2, metadata={"check": check_fraction})
    """Fraction of the videos that are not fitted, at least one where there are two: they say when to stop."""
    every: int = field(default=100, metadata={"check": check_count})
    """Steps from one look at the held-out videos to the next."""
    patience: int = field(default=10, metadata={"check": check_count})
    """Looks without a better one, after which fitting stops."""

    def __post_init__(self) -> None:
        checked(self)


class Footage(NamedTuple):
    """The frames of a recording, or their features, and where they are in time."""

    name: str
    data: torch.Tensor
    """Features of its frames, float32 (T, D); or the frames themselves, uint8 (T, 3, 64, 64), for a tower to learn."""
    places: torch.Tensor
    """Where they are in time, float32 (T,), from 0 to 1."""


class Pairs(NamedTuple):
    """Frames of some videos, and pairs of them in both orders.

    TimeRewarder draws close frames more often, since an agent is paid for steps. Here frames lie around a few places
    of each video, at exponentially distributed distances, so that two in five pairs are close. A ninth of all
    pairs are of two videos: their distance is that of their places, since all do the same task. Each frame is encoded
    once for all of its pairs.
    """

    frames: torch.Tensor
    """Numbers of frames, all videos' one after the other, int64 (F,), of one video after the other."""
    first: torch.Tensor
    """int64 (P,): rows of `frames`."""
    second: torch.Tensor
    """int64 (P,)."""
    distances: torch.Tensor
    """float32 (P,): from the first to the second, from -1 to 1."""


class PairSampler:
    """Draws `Pairs` of videos."""

    def __init__(self, samples: Sequence[Footage], seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._lengths = torch.tensor([len(one.places) for one in samples])
        self._starts = self._lengths.cumsum(0) - self._lengths
        self._places = torch.cat([one.places for one in samples])
        size = _CLUSTERS * _NEAR
        rows = torch.arange(_GROUPS * size).view(_GROUPS, size)
        own = torch.cartesian_prod(torch.arange(size), torch.arange(size))
        own = own[own[:, 0] != own[:, 1]]
        pairs = torch.cat([rows[:, own].flatten(0, 1), torch.stack([rows, rows.roll(1, 0)], -1).flatten(0, 1)])
        self._first, self._second = pairs.unbind(1)

    def draw(self) -> Pairs:
        """Draw the pairs of a gradient step."""
        videos = torch.randint(len(self._lengths), (_GROUPS, 1, 1), generator=self._generator)
        shape, lengths = (_GROUPS, _CLUSTERS, _NEAR), self._lengths[videos]
        places = (torch.rand(_GROUPS, _CLUSTERS, 1, generator=self._generator) * lengths).long()
        away, side = torch.rand(2, *shape, generator=self._generator)
        gaps = (1 - _SHORT * lengths * torch.log1p(-away)).long() * torch.where(side < 0.5, -1, 1)
        gaps[..., 0] = 0
        near = places + gaps
        near = torch.where((near < 0) | (near >= lengths), places - gaps, near)
        near = near.clamp(min=torch.zeros((), dtype=torch.int64), max=lengths - 1)
        frames = (self._starts[videos] + near).flatten()
        at = self._places[frames]
        return Pairs(frames, self._first, self._second, at[self._second] - at[self._first])


def two_hot(distances: torch.Tensor) -> torch.Tensor:
    """Divide distances from -1 to 1, (B,), between the two nearest bins: (B, K), whose mean is the distance."""
    place = (distances.clamp(-1, 1) + 1) / 2 * (BINS - 1)
    low = place.long().clamp(max=BINS - 2)
    part = (place - low)[:, None]
    rows = F.one_hot(low, BINS) * (1 - part) + F.one_hot(low + 1, BINS) * part
    return rows.to(distances.dtype)


def split(count: int, options: VideoFitOptions, seed: int) -> tuple[list[int], list[int]]:
    """Choose the videos that are fitted and those that are held out; of one video none is held out."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    held_out = min(max(1, round(options.held_out * count)), count - 1) if options.held_out else 0
    return sorted(order[held_out:]), sorted(order[:held_out])


def fit_network(
    network: DistanceNetwork,
    fitted: Sequence[Footage],
    held_out: Sequence[Footage],
    options: VideoFitOptions,
    *,
    device: torch.device,
    seed: int,
    say: Callable[[int, float], object],
) -> dict[str, float]:
    """Fit a network, in place, and its tower if it has one. Returns figures.

    `say` gets the number of steps and the newest loss on held-out pairs, NaN without any. The network is that of the
    least loss there, or the last one.
    """
    sampler, data = PairSampler(fitted, seed), torch.cat([one.data for one in fitted])
    network.to(device)
    if network.cnn is None:
        network.scale_features(data.to(device))
    else:
        network.feature_scale.fill_(network.size**-0.5)
    optimizer = torch.optim.AdamW(network.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    generator = torch.Generator().manual_seed(seed)
    best, best_loss, since, step, loss = None, float("inf"), 0, 0, torch.zeros(())
    for step in range(1, options.steps + 1):
        pairs = sampler.draw()
        frames = data[pairs.frames].to(device)
        if network.cnn is not None:
            frames = augment(frames.float(), generator)
        loss = _loss(network, _features(network, frames), pairs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        looks = len(held_out) > 0 and (step % options.every == 0 or step == options.steps)
        held_out_loss = evaluate(network, held_out, device) if looks else float("nan")
        say(step, held_out_loss)
        since += looks
        if held_out_loss < best_loss:
            best_loss, since = held_out_loss, 0
            best = {name: value.clone() for name, value in network.state_dict().items()}
        if since >= options.patience:
            break
    if best is not None:
        network.load_state_dict(best)
    network.cpu().requires_grad_(False)
    return {"steps": step, "loss": float(loss.detach()), "held_out_loss": best_loss if held_out else float("nan")}


@torch.no_grad()
def evaluate(network: DistanceNetwork, samples: Sequence[Footage], device: torch.device) -> float:
    """Measure the loss on pairs of videos, the same every time, in nats."""
    sampler = PairSampler(samples, 0)
    features = torch.cat([encode(network, one.data, device) for one in samples])
    draws = [sampler.draw() for _ in range(_HELD_OUT_STEPS)]
    return float(torch.stack([_loss(network, features[pairs.frames], pairs) for pairs in draws]).mean())


@torch.no_grad()
def encode(network: DistanceNetwork, data: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Compute the features of a recording's frames, float32 (T, D)."""
    return torch.cat([_features(network, part.to(device)) for part in data.split(256)])


def _features(network: DistanceNetwork, data: torch.Tensor) -> torch.Tensor:
    """Features, float32 (F, D), of frames, (F, 3, 64, 64), by the network's tower; without one they are the data."""
    return data if network.cnn is None else F.normalize(network.cnn.encode_pixels(data), dim=-1)


def _loss(network: DistanceNetwork, features: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """The loss of pairs by the features of their frames, float32 (F, D)."""
    logits = network.logits(features[pairs.first], features[pairs.second])
    return F.cross_entropy(logits, two_hot(pairs.distances).to(logits.device))


def augment(pixels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Move and colour pictures, float32 (F, 3, S, S) from 0 to 255; all of a video in the same way."""
    shift = torch.randint(-_SHIFT, _SHIFT + 1, (_GROUPS, 2), generator=generator) * (2 / SIZE)
    change = torch.randn(_GROUPS, 5, generator=generator) * _COLOUR
    each = len(pixels) // _GROUPS
    shift, change = (values.repeat_interleave(each, 0).to(pixels) for values in (shift, change))
    moves = torch.eye(2, 3, device=pixels.device).repeat(len(pixels), 1, 1)
    moves[:, :, 2] = shift
    grid = F.affine_grid(moves, [*pixels.shape], align_corners=False)
    moved = F.grid_sample(pixels, grid, mode="nearest", padding_mode="border", align_corners=False)
    scale = (1 + change[:, :1]) * (1 + change[:, 2:])
    return ((moved - 127.5) * scale[..., None, None] + 127.5 * (1 + change[:, 1, None, None, None])).clamp(0, 255)
