"""A small image tower that is learned from videos, for worlds that no vision-language model at hand knows."""

import torch

SIZE = 64
"""Height and width of its input, in pixels."""
WIDTHS = (32, 32, 64, 64)
"""Channels of its layers. Each halves height and width."""
FEATURES = 64
"""Width of its features, D."""
MEAN, STD = 0.5, 0.25
"""Of pixels from 0 to 1, in all channels."""
PREPROCESSING = {"size": SIZE, "mean": (MEAN,) * 3, "std": (STD,) * 3, "interpolation": "bilinear"}
"""In open_clip's terms."""


class FrameCNN(torch.nn.Module):
    """Four convolutions and a linear layer. It keeps where things are, as control needs; 150,000 parameters."""

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
