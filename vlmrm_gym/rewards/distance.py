"""How far apart in time two frames are: the networks that are learned from videos, and the heads that pay by them."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from vlmrm_gym.rewards.clip import EncoderFields
from vlmrm_gym.rewards.heads import SequenceHead
from vlmrm_gym.rewards.saved import head_file
from vlmrm_gym.rewards.saved_head import SavedHead
from vlmrm_gym.rewards.sources import CNN

BINS = 20
"""Number of values between -1 and 1 that the network chooses from."""
SHOWN = 1_000
"""Frames of the videos that a network keeps, at most."""
SIZE = 64
"""Height and width of a `FrameCNN`'s input, in pixels."""
WIDTHS = (32, 32, 64, 64)
"""Channels of its layers. Each halves height and width."""
FEATURES = 64
"""Width of its features, D."""
MEAN, STD = 0.5, 0.25
"""Of pixels from 0 to 1, in all channels."""
PREPROCESSING = {"size": SIZE, "mean": (MEAN,) * 3, "std": (STD,) * 3, "interpolation": "bilinear"}
"""In open_clip's terms."""
Fields = TypeVar("Fields", bound=EncoderFields)


class FrameCNN(torch.nn.Module):
    """A small image tower for worlds that no vision-language model at hand knows: 4 convolutions and a linear layer.

    It keeps where things are, as control needs; 150,000 parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        for inputs, outputs in zip((3, *WIDTHS), WIDTHS, strict=False):
            layers += [torch.nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), torch.nn.ReLU()]
        side = SIZE // 2 ** len(WIDTHS)
        self.layers = torch.nn.Sequential(*layers, torch.nn.Flatten())
        self.project = torch.nn.Linear(WIDTHS[-1] * side * side, FEATURES)

    @property
    def visual(self) -> "FrameCNN":
        """The image tower, as models with a text tower call it."""
        return self

    def encode_image(self, images: torch.Tensor) -> torch.Tensor:
        """Features of preprocessed images: (B, 3, 64, 64) to (B, D)."""
        return self.project(self.layers(images))

    def encode_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        """Features of pictures of its size, from 0 to 255: (B, 3, 64, 64) to (B, D)."""
        return self.encode_image((pixels.float() / 255 - MEAN) / STD)


class DistanceNetwork(SavedHead):
    """Predicts (v - u) / (T - 1) of the frames u and v of a video of T frames, from -1 to 1, by their features.

    As TimeRewarder (arXiv 2509.26627) it chooses between bins, and the prediction is their mean. The difference of both
    orders is taken, d(a, b) = (f(a, b) - f(b, a)) / 2, so that a frame is at distance 0 of itself, and going back costs
    what going there earned.

    Features, of width `size`, with this fingerprint, are made by the vision-language model of the name `model`, whose
    size frames get by `resize_mode`; without one, by the tower `cnn` in this file. `frames` is the mean number of
    frames of the videos, minus 1.
    """

    key = "vlmrm_gym.distance_network"
    arguments = ("size", "hidden_size", "model", "resize_mode", "fingerprint", "frames", "num_shown")

    def __init__(
        self,
        size: int = FEATURES,
        *,
        hidden_size: int = 128,
        model: str | None = None,
        resize_mode: str | None = None,
        fingerprint: str = "",
        frames: float = 1.0,
        num_shown: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.size, self.hidden_size, self.model, self.resize_mode = size, hidden_size, model, resize_mode
        self.fingerprint, self.frames = fingerprint, frames
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            self.cnn = FrameCNN() if model is None else None
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(2 * size, hidden_size),
                torch.nn.GELU(),
                torch.nn.Linear(hidden_size, hidden_size),
                torch.nn.GELU(),
                torch.nn.Linear(hidden_size, BINS),
            )
        self.feature_mean = torch.nn.Buffer(torch.zeros(size))
        self.feature_scale = torch.nn.Buffer(torch.ones(()))
        self.start = torch.nn.Buffer(torch.zeros(size))
        """The mean features of the videos' first frames."""
        self.videos = torch.nn.Buffer(torch.zeros(num_shown, size))
        """Features of frames of the videos, all or as many as `SHOWN`."""

    @property
    def num_shown(self) -> int:
        """The number of frames that it keeps."""
        return len(self.videos)

    def check(self) -> None:
        """See `SavedHead`."""
        super().check()
        if not isinstance(self.model, str | None) or not isinstance(self.resize_mode, str | None):
            raise TypeError("its model and its resize_mode must be texts")
        if not isinstance(self.frames, int | float) or not 0 < self.frames < float("inf"):
            raise TypeError("its number of frames must be a number above 0")

    def remember(self, features: Sequence[torch.Tensor]) -> None:
        """Keep the features of videos, each float32 (T, D): where they begin, and of some of their frames."""
        self.start.copy_(torch.stack([one[0] for one in features]).mean(0))
        frames = torch.cat([*features])
        self.videos = torch.nn.Buffer(frames[torch.linspace(0, len(frames) - 1, min(len(frames), SHOWN)).long()])

    def name_tower(self) -> None:
        """Say in the fingerprint which weights the own tower has."""
        assert self.cnn is not None
        digest = hashlib.sha256()
        for weights in self.cnn.state_dict().values():
            digest.update(weights.cpu().contiguous().numpy().tobytes())
        self.fingerprint = f"{CNN}{digest.hexdigest()[:12]}, squash"

    def logits(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Of the bins: features float32 (B, D), twice, to (B, K)."""
        pair = torch.stack([first, second], dim=-2)
        return self.layers(((pair - self.feature_mean) / self.feature_scale).flatten(-2))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Distances from the first to the second frames, from -1 to 1: features float32 (B, D), twice, to (B,)."""
        there, back = (self.logits(*pair).softmax(-1) for pair in ((first, second), (second, first)))
        return ((there - back) @ torch.linspace(-1, 1, BINS, device=first.device)) / 2

    def places(self, features: torch.Tensor) -> torch.Tensor:
        """Distances from where the videos begin: features float32 (..., D) to (...)."""
        return self(self.start.expand_as(features), features)


def with_encoder_of(file: str, network: DistanceNetwork, fields: Fields) -> Fields:
    """Fill in the fields that say how features are made, where they do not, with what a network was fitted to."""
    model = fields.model or network.model or f"{CNN}{head_file(file)}"
    return replace(fields, model=model, resize_mode=fields.resize_mode or network.resize_mode)


class PlaceHead(torch.nn.Module):
    """The share of the task that is done in a state, of one view: its distance from the videos' mean first frame."""

    def __init__(self, network: DistanceNetwork) -> None:
        super().__init__()
        self.network, self.fingerprint = network, network.fingerprint

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Score states by features, float32 (B, 1, D): float32 (B,)."""
        return self.network.places(features[:, 0])


class StepHead(SequenceHead, PlaceHead):
    """The gain of a step, of one view: 1 is as much as from one frame of the videos to the next, on average."""

    sees_first = True

    def begin(self, first: torch.Tensor) -> torch.Tensor:
        """See `SequenceHead`."""
        return first[:, 0].clone()

    def advance(self, features: torch.Tensor, carry: Any) -> tuple[torch.Tensor, Any]:
        """See `SequenceHead`. Where no first state is known, the first one that is scored stands for it."""
        frames = features[:, 0]
        before = torch.cat([frames[:1] if carry is None else carry, frames[:-1]])
        return self.network.frames * self.network(before, frames), frames[-1:].clone()
