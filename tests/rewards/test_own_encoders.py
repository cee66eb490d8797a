"""Encoders and heads of one's own: `encode` is checked once for all paths, and heads do not write to its features."""

import numpy as np
import pytest
import torch
from counting_env import Counting
from reward_models import PixelReward

import vlmrm_gym
from vlmrm_gym.rewards.base import encode_frames
from vlmrm_gym.rewards.heads import apply_head


class Own:
    """Features, (B, 3), whose first is the number that the pixel encodes; the reward is that number."""

    def __init__(self, change=lambda features: features):
        self._change = change

    def encode(self, frames):
        numbers = PixelReward()(frames)
        return self._change(np.stack([numbers, 0 * numbers, 0 * numbers], axis=1))

    def head(self, features):
        return features[:, 0, 0]


def rewards_of_two(reward, **options):
    """The rewards of two environments, whose states are numbered 1 2 3 4, float32 (2, 4)."""
    makers = [lambda: Counting(lengths=[4], first=-1)] * 2
    envs = vlmrm_gym.VLMRewardVectorEnv(makers, reward=reward, **options)
    try:
        envs.reset(seed=0)
        paid = [envs.step(np.zeros(2, dtype=int)) for _ in range(4)]
        if options.get("scoring") == "step":
            return np.stack([rewards for _, rewards, *_ in paid], axis=1)
        infos = paid[-1][4] if paid[-1][4]["vlm_rewards"][0] is not None else envs.flush()
        return np.stack(infos["vlm_rewards"])
    finally:
        envs.close()


PATHS = {
    "called": {},
    "features": {"return_features": True},
    "every step": {"return_features": True, "scoring": "step"},
    "a worker": {"return_features": True, "num_workers": 1},
}


def bfloat16(features):
    return torch.from_numpy(features).bfloat16()


RIGHT = {
    "float32": lambda features: features,
    "float16": lambda features: features.astype(np.float16),
    "float64": lambda features: features.astype(np.float64),
    "integers": lambda features: features.astype(np.int64),
    "lists": lambda features: features.tolist(),
    "torch": torch.from_numpy,
    "torch bfloat16": bfloat16,
    "torch float16": lambda features: torch.from_numpy(features).half(),
    "torch with a gradient": lambda features: torch.from_numpy(features).requires_grad_(),
}


@pytest.mark.parametrize("change", RIGHT.values(), ids=list(RIGHT))
@pytest.mark.parametrize("path", ["called", "features", "every step"])
def test_features_of_any_kind_of_numbers_give_the_same_rewards(change, path):
    np.testing.assert_array_equal(rewards_of_two(Own(change), **PATHS[path]), [[1, 2, 3, 4], [1, 2, 3, 4]])


WRONG = {
    "a row too many for each": (
        lambda features: features.repeat(2, axis=0),
        r"Received torch.float32 of shape \(\d+, 3\)",
    ),
    "columns are frames": (lambda features: features.T, r"Received torch.float32 of shape \(3, \d\)"),
    "a number each": (lambda features: features[:, 0], r"Received torch.float32 of shape \(\d,\)"),
    "a third dimension": (lambda features: features[:, None], r"Received torch.float32 of shape \(\d, 1, 3\)"),
    "no columns": (lambda features: features[:, :0], r"Received torch.float32 of shape \(\d, 0\)"),
    "NaN": (lambda features: features * np.nan, "and finite ones. Received a NaN or an infinity"),
    "too large": (lambda features: features.astype(np.float64) + 1e300, "and finite ones"),
}


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=list(WRONG))
@pytest.mark.parametrize("path", PATHS)
def test_features_of_another_shape_are_refused_wherever_they_are_made(change, message, path):
    """(2B, D) was reshaped: rewards 1 3 1 3 and 0 0 0 0 where 1 2 3 4 and 1 2 3 4 are right."""
    with pytest.raises(
        ValueError, match=r"`encode` must return features of shape \(\d, D\), a row for each frame.*" + message
    ):
        rewards_of_two(Own(change), **PATHS[path])


def test_features_that_are_no_numbers_or_not_as_wide_as_was_said_are_refused():
    frames = np.zeros((4, 2, 2, 3), dtype=np.uint8)
    for returned in (None, ["a"] * 4, [[1.0], [1.0, 2.0], [1.0], [1.0]], {"features": 1}):
        with pytest.raises(TypeError, match=r"`encode` must return features of shape \(4, D\)"):
            encode_frames(Own(lambda features, returned=returned: returned), frames)
    wide = Own()
    wide.feature_size = 2
    with pytest.raises(
        ValueError, match=r"of shape \(4, 2\), a row for each frame. Received torch.float32 of shape \(4, 3\)"
    ):
        encode_frames(wide, frames)


@pytest.mark.filterwarnings("ignore:The bundled model does not know this scene")
def test_an_image_tower_of_ones_own_may_have_features_of_half_the_precision():
    """A subclass of CLIPReward scores as before."""

    class Goal(vlmrm_gym.CLIPReward):
        def encode(self, frames):
            return super().encode(frames).bfloat16()

    frames = np.random.default_rng(0).integers(0, 256, (3, 96, 96, 3), dtype=np.uint8)
    own, plain = (kind("tiny", prompt="an upright pole") for kind in (Goal, vlmrm_gym.CLIPReward))
    np.testing.assert_allclose(own(frames), plain(frames), atol=5e-3)


WRITERS = {
    "multiplied": lambda features: features.mul_(2)[:, 0, 0],
    "a part": lambda features: features[:, 0].add_(1)[:, 0],
    "by index": lambda features: features.__setitem__((slice(None), 0, 0), 0.0) or features[:, 0, 0],
    "out": lambda features: torch.add(features, 1, out=features)[:, 0, 0],
    "inference mode": torch.inference_mode()(lambda features: features.mul_(2)[:, 0, 0]),
}


@pytest.mark.parametrize("head", WRITERS.values(), ids=list(WRITERS))
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_head_that_writes_to_its_features_raises_and_changes_nothing(head, dtype):
    """A buffer kept doubled features, at each relabel."""
    features = np.arange(12, dtype=dtype).reshape(4, 1, 3)
    kept = features.copy()
    with pytest.raises(ValueError, match=r"`head` .* It wrote to the features"):
        apply_head(head, features)
    np.testing.assert_array_equal(features, kept)
    np.testing.assert_array_equal(apply_head(lambda rows: (rows * 2)[:, 0, 0], features), [0, 6, 12, 18])


def test_a_head_that_writes_through_numpy_changes_nothing_that_is_kept():
    """Torch does not see it, so it is not refused: it gets a copy."""

    def doubled(features):
        features.numpy()[:] *= 2
        return features[:, 0, 0]

    features = np.arange(12, dtype=np.float32).reshape(4, 1, 3)
    for _ in range(2):
        np.testing.assert_array_equal(apply_head(doubled, features), [0, 6, 12, 18])
    np.testing.assert_array_equal(features.ravel(), np.arange(12))
