"""Encoders and heads of one's own: `encode` is checked once for all paths, and heads do not write to its features."""

import numpy as np
import pytest
import torch
from reward_models import PixelReward

import vlmrm_gym
from vlmrm_gym.rewards.current_head import apply_head
from vlmrm_gym.rewards.model import encode_frames


class Own(vlmrm_gym.RewardModel):
    """Features, (B, 3), whose first is the number that the pixel encodes; the reward is that number."""

    def __init__(self, change=lambda features: features):
        self._change = change

    def encode(self, frames):
        return self._change(PixelReward().encode(frames) * np.float32([1, 0, 0]))

    def head(self, features):
        return features[:, 0, 0]


FRAMES = np.arange(4 * 3, dtype=np.uint8).reshape(4, 1, 1, 3) * np.uint8([1, 0, 0])  # numbers that bfloat16 has


def test_features_of_any_kind_of_numbers_are_read():
    expected = Own().encode(FRAMES)
    for change in (
        lambda features: features.astype(np.float64),
        lambda features: features.astype(np.int64),
        lambda features: features.tolist(),
        torch.from_numpy,
        lambda features: torch.from_numpy(features).double(),
        lambda features: torch.from_numpy(features).bfloat16(),  # which NumPy lacks
        lambda features: torch.from_numpy(features).requires_grad_(),
    ):
        features = encode_frames(Own(change), FRAMES)
        assert features.dtype == np.float32
        np.testing.assert_array_equal(features, expected)


def test_features_that_are_refused():
    rule = r"`encode` must return features of shape \(4, {}\), a row for each frame.*{}"
    for change, message in [
        (lambda features: features.repeat(2, axis=0), r"Received float32 of shape \(8, 3\)"),  # was reshaped
        (lambda features: features[:, 0], r"Received float32 of shape \(4,\)"),
        (lambda features: features[:, :0], r"Received float32 of shape \(4, 0\)"),
        (lambda features: features * np.nan, "and finite ones. Received a NaN or an infinity"),
        (lambda features: features.astype(np.float64) + 1e300, "and finite ones"),
        (lambda features: None, "Received None"),
        (lambda features: [[1.0], [1.0, 2.0], [1.0], [1.0]], r"Received \[\[1.0\], \[1.0, 2.0\]"),
    ]:
        with pytest.raises((ValueError, TypeError), match=rule.format("D", message)):
            encode_frames(Own(change), FRAMES)
    wide = Own()
    wide.feature_size = 2
    with pytest.raises(ValueError, match=rule.format(2, r"Received float32 of shape \(4, 3\)")):
        encode_frames(wide, FRAMES)


def test_a_head_that_writes_to_its_features_raises_and_changes_nothing():
    """A buffer kept doubled features, at each relabel. What NumPy writes torch does not see: it gets a copy."""
    features = np.arange(12, dtype=np.float32).reshape(4, 1, 3)
    kept = features.copy()
    for head in (
        lambda features: features.mul_(2)[:, 0, 0],
        lambda features: features[:, 0].add_(1)[:, 0],
        lambda features: features.__setitem__((slice(None), 0, 0), 0.0) or features[:, 0, 0],
        lambda features: torch.add(features, 1, out=features)[:, 0, 0],
        torch.inference_mode()(lambda features: features.mul_(2)[:, 0, 0]),
    ):
        with pytest.raises(ValueError, match=r"`head` .* It wrote to the features"):
            apply_head(head, features)

    def doubled(features):
        features.numpy()[:] *= 2
        return features[:, 0, 0]

    for _ in range(2):
        np.testing.assert_array_equal(apply_head(doubled, features), [0, 6, 12, 18])
    np.testing.assert_array_equal(features, kept)
