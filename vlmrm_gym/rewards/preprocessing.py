"""Frames to what an image tower looks at: fitted to its size, normalised, batched, on the model's device."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import torch
import torch.nn.functional as F

ResizeMode = Literal["squash", "shortest", "longest"]
LEAST_DRAWING = 192
"""Pixels below which a drawing loses thin things, such as a humanoid's arms."""

RESIZE_MODES: tuple[ResizeMode, ...] = get_args(ResizeMode)


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How frames of any size become the input of one image tower.

    Attributes:
        height: Of the tower's input, in pixels.
        width: Of the tower's input, in pixels.
        mean: Per channel, of pixel values from 0 to 1.
        std: Per channel, of pixel values from 0 to 1.
        interpolation: "bicubic" or "bilinear"; both antialiased.
        resize_mode: "squash" stretches the frame to the tower's size, as VLM-RM does; "shortest" keeps its shape and
            crops the centre, as open_clip does for most models; "longest" keeps its shape and pads with black.
    """

    height: int
    width: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    resize_mode: ResizeMode = "squash"

    def __call__(self, frames: torch.Tensor) -> torch.Tensor:
        """Fit and normalise frames.

        Args:
            frames: uint8 (B, H, W, 3), on the device where the work is to be done.

        Returns:
            float32 (B, 3, height, width), channels last in memory.
        """
        pixels = self.fit(frames.permute(0, 3, 1, 2)).to(torch.float32)  # a view: (B, 3, H, W), channels last
        scale, shift = _scale_and_shift(self.mean, self.std, frames.device)
        return pixels.mul_(scale).add_(shift)

    def size_to_draw(self, height: int, width: int) -> tuple[int, int]:
        """How large to draw what an environment shows at (height, width), so that `fit` has the pixels it needs.

        The shape stays, so that nothing looks other than it does in the environment. A small tower gets a larger
        drawing: fitting it antialiases.
        """
        ratios = self.height / height, self.width / width
        ratio = min(ratios) if self.resize_mode == "longest" else max(ratios)
        ratio *= math.ceil(LEAST_DRAWING / max(self.height, self.width))
        return round(height * ratio), round(width * ratio)

    def fit(self, images: torch.Tensor) -> torch.Tensor:
        """Bring images of any size to the tower's: uint8 (B, 3, H, W) to (B, 3, height, width).

        On the CPU pixels stay uint8, as in Pillow, which the models were trained with and which is ten times as fast
        as resizing floats. Elsewhere the result is the same values, rounded, as float32.
        """
        height, width = images.shape[-2:]
        if self.resize_mode == "squash":
            return self._resize(images, self.height, self.width)
        ratios = self.height / height, self.width / width
        ratio = max(ratios) if self.resize_mode == "shortest" else min(ratios)
        images = self._resize(images, max(1, round(height * ratio)), max(1, round(width * ratio)))
        # Negative padding crops.
        down, right = self.height - images.shape[-2], self.width - images.shape[-1]
        top, left = down // 2, right // 2
        return F.pad(images, (left, right - left, top, down - top))

    def _resize(self, images: torch.Tensor, height: int, width: int) -> torch.Tensor:
        if images.shape[-2:] == (height, width):
            return images
        if images.device.type != "cpu":
            images = images.to(torch.float32)
        images = F.interpolate(images, size=(height, width), mode=self.interpolation, antialias=True)
        return images if images.dtype == torch.uint8 else images.round_().clamp_(0, 255)


@cache
def _scale_and_shift(mean: Sequence[float], std: Sequence[float], device: torch.device) -> tuple[torch.Tensor, ...]:
    """(x / 255 - mean) / std as x * scale + shift: float32 (3, 1, 1) each, sent to the device once."""
    scale = [1 / (255 * s) for s in std]
    shift = [-m / s for m, s in zip(mean, std, strict=True)]
    return tuple(torch.tensor(values, device=device).view(3, 1, 1) for values in (scale, shift))
