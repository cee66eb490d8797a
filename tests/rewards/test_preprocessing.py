"""Frames to tower input, against open_clip's own transforms."""

import numpy as np
import pytest
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image

from vlmrm_gym.rewards.models import Preprocessing

MEAN, STD = (0.1, 0.5, 0.7), (0.2, 0.5, 0.9)


@pytest.mark.parametrize(
    ("resize_mode", "interpolation"),
    [("squash", "bicubic"), ("squash", "bilinear"), ("shortest", "bicubic"), ("longest", "bilinear")],
)
def test_same_pixels_as_open_clip(rng, resize_mode, interpolation):
    for shape in [(400, 600), (480, 480), (100, 37), (20, 30), (96, 96)]:
        noise = Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8))
        frame = np.asarray(noise.resize((shape[1] // 4, shape[0] // 4)).resize(shape[::-1]))  # smooth, as renders are
        cfg = PreprocessCfg(size=96, mean=MEAN, std=STD, resize_mode=resize_mode, interpolation=interpolation)
        expected = image_transform_v2(cfg, is_train=False)(Image.fromarray(frame))
        ours = Preprocessing(
            height=96, width=96, mean=MEAN, std=STD, interpolation=interpolation, resize_mode=resize_mode
        )
        result = ours(torch.from_numpy(frame.copy())[None])[0]
        assert result.shape == (3, 96, 96)
        grey_levels = (result - expected).abs() * 255 * torch.tensor(STD).view(3, 1, 1)
        assert grey_levels.mean() < 0.5, shape
        assert grey_levels.max() < 2.01 or resize_mode != "squash", shape


@pytest.mark.parametrize("resize_mode", ["shortest", "longest"])
def test_odd_margins_are_split_as_open_clip_does(resize_mode):
    """A ramp along the longer edge moves by 4 grey levels or more if the crop or the picture moves by a pixel."""
    for length in range(48, 72):
        ramp = np.tile((np.arange(length) * 4 % 256).astype(np.uint8)[:, None, None], (1, 47, 3))
        for frame in (ramp, np.ascontiguousarray(ramp.swapaxes(0, 1))):
            for size in (47, (47, 31), (31, 47)):
                cfg = PreprocessCfg(size=size, mean=(0, 0, 0), std=(1, 1, 1), resize_mode=resize_mode)
                expected = image_transform_v2(cfg, is_train=False)(Image.fromarray(frame))
                height, width = (size, size) if isinstance(size, int) else size
                ours = Preprocessing(height=height, width=width, mean=(0, 0, 0), std=(1, 1, 1), resize_mode=resize_mode)
                difference = (ours(torch.from_numpy(frame)[None])[0] - expected).abs() * 255
                assert difference.max() < 2.01, (length, size)
