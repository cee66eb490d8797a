"""From frames to the input of an image tower: resized and normalised, on the model's device."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F

from vlmrm_gym.rewards.clip_options import ResizeMode

MIN_RENDER_SIZE = 192
"""Below this many pixels, renders lose thin objects, such as a humanoid's arms."""


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Turns frames of any size into the input of one image tower.

    Attributes:
        height: Of the tower's input, in pixels.
        width: Of the tower's input, in pixels.
        mean: Per channel, of pixel values from 0 to 1.
        std: Per channel, of pixel values from 0 to 1.
        interpolation: "bicubic" or "bilinear"; both antialiased.
        resize_mode: "squash" stretches the frame to the tower's size, as VLM-RM does; "shortest" keeps the aspect ratio
            and crops the centre, as open_clip does for most models; "longest" keeps it and pads with black.
    """

    height: int
    width: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    resize_mode: ResizeMode = "squash"

    def __call__(self, frames: torch.Tensor) -> torch.Tensor:
        """Resize and normalise frames.

        Args:
            frames: uint8 (B, H, W, 3), on the device that computes.

        Returns:
            float32 (B, 3, height, width), channels last in memory.
        """
        pixels = self.fit(frames.permute(0, 3, 1, 2)).to(torch.float32)  # a view: (B, 3, H, W), channels last
        scale, shift = _scale_and_shift(self.mean, self.std, frames.device)
        return pixels.mul_(scale).add_(shift)

    def render_size(self, height: int, width: int) -> tuple[int, int]:
        """The size at which to render an environment whose own frames are (height, width), so that `fit` scales down.

        The aspect ratio is kept. For a small tower, frames are rendered larger than its input: resizing antialiases.
        """
        ratios = self.height / height, self.width / width
        ratio = min(ratios) if self.resize_mode == "longest" else max(ratios)
        ratio *= math.ceil(MIN_RENDER_SIZE / max(self.height, self.width))
        return round(height * ratio), round(width * ratio)

    def fit(self, images: torch.Tensor) -> torch.Tensor:
        """Resize images to the tower's size: uint8 (B, 3, H, W) to (B, 3, height, width).

        On the CPU pixels stay uint8, as in Pillow, which the models were trained with; this is ten times as fast as
        resizing floats. On other devices the result is rounded to the same values, as float32.
        """
        images = self._resize(images, *self._scaled(*images.shape[-2:]))
        down, right = self.height - images.shape[-2], self.width - images.shape[-1]
        top, left = _before(down), _before(right)
        return F.pad(images, (left, right - left, top, down - top))  # negative padding crops

    def _scaled(self, height: int, width: int) -> tuple[int, int]:
        """The size of a frame, (height, width), before it is cropped or padded; rounded as open_clip does."""
        if self.resize_mode == "squash":
            return self.height, self.width
        if self.resize_mode == "shortest" and self.height == self.width:  # torchvision's `Resize`, which truncates
            short = min(height, width)
            return self.height * height // short, self.width * width // short
        ratios = height / self.height, width / self.width
        ratio = min(ratios) if self.resize_mode == "shortest" else max(ratios)
        return max(1, round(height / ratio)), max(1, round(width / ratio))

    def _resize(self, images: torch.Tensor, height: int, width: int) -> torch.Tensor:
        if images.shape[-2:] == (height, width):
            return images
        if images.device.type != "cpu":
            images = images.to(torch.float32)
        images = F.interpolate(images, size=(height, width), mode=self.interpolation, antialias=True)
        return images if images.dtype == torch.uint8 else images.round_().clamp_(0, 255)


def _before(missing: int) -> int:
    """Pixels to pad at the top or left, of all that are missing; negative: to crop. Rounded as torchvision does."""
    return missing // 2 if missing > 0 else round(missing / 2)


@cache
def _scale_and_shift(mean: Sequence[float], std: Sequence[float], device: torch.device) -> tuple[torch.Tensor, ...]:
    """(x / 255 - mean) / std as x * scale + shift: float32 (3, 1, 1) each, sent to the device once."""
    scale = [1 / (255 * s) for s in std]
    shift = [-m / s for m, s in zip(mean, std, strict=True)]
    return tuple(torch.tensor(values, device=device).view(3, 1, 1) for values in (scale, shift))
