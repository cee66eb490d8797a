"""Reward models that would be scored wrongly are refused, or made right, at the door."""

from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from counting_env import Counting

import vlmrm_gym
from vlmrm_gym.rewards.clip import CLIP
from vlmrm_gym.states import States


class Counts(vlmrm_gym.RewardModel):
    """The number that a frame of `Counting` encodes."""

    def encode(self, frames):
        return frames[:, 0, 0, :1].astype(np.float32)


class Sums(vlmrm_gym.SequenceHead):
    def advance(self, features, carry):
        return features[:, 0, 0], None


def make(reward, **options):
    return vlmrm_gym.VLMRewardVectorEnv([lambda: Counting([5])], reward=reward, **options)


def model(**attributes):
    return type("Model", (Counts,), attributes)()


REFUSED = {
    "`encode`": (lambda: vlmrm_gym.RewardModel(), ValueError, "`reward` must define `encode`"),
    "head": (lambda: model(head=3), ValueError, "`reward.head` must be a callable"),
    "held clips": (lambda: model(every=2, clip_length=2), ValueError, "`reward.every` above 1 .* `clip_length`"),
    "held, ordered": (lambda: model(every=2, ordered=True), ValueError, "`reward.every` above 1 .* `ordered`"),
    "call": (lambda: model(__call__=lambda self, frames: 0), ValueError, "`reward` must not override `__call__`"),
    "no base": (lambda: type("Model", (), {"encode": 0, "__call__": 0})(), TypeError, "derive .* to have `encode`"),
    "no spec": (
        lambda: type("Spec", (), {"build": 0})(),
        TypeError,
        "RewardSpec to have `build`",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_scored_is_refused(name):
    construct, error, match = REFUSED[name]
    with pytest.raises(error, match=match):
        make(construct())


def test_an_ordered_model_is_not_interpolated():
    with pytest.raises(ValueError, match="`score_every` is not for this reward: it depends on the states before"):
        make(model(ordered=True), score_every=2)


def test_features_of_several_numbers_need_a_head():
    """The first of them would be paid in silence."""
    wide = model(encode=lambda self, frames: frames.mean((1, 2)))
    env = vlmrm_gym.VLMReward(gym.make("CartPole-v1", render_mode="rgb_array"), reward=wide)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="`head` must be defined for features of width 3"):
        env.step(0)
    with pytest.raises(RuntimeError, match="Call `reset`"):
        env.step(0)
    env.close()


def test_heads_are_heads():
    envs = make(Counts(), return_features=True)
    with pytest.raises(TypeError, match=r"pass its `.head`"):
        envs.head.replace(Counts())
    with pytest.raises(TypeError, match=r"To replace it: envs.head.replace"):
        envs.head = lambda features: features[:, 0, 0]
    assert envs.scorer.features(States(np.zeros((0, 2, 2, 3), dtype=np.uint8))).shape[0] == 0
    envs.close()


class Local(vlmrm_gym.RewardSpec):
    """A kind of a user's own, which must be asked what it is."""

    learns, in_workers = True, False
    models: ClassVar[list] = []

    def with_model(self, model):
        self.models.append(model)
        return self

    def build(self, device="auto"):
        return model(head=None)


def test_a_specification_is_asked_what_it_is():
    """Whether it learns, where it is scored, and for which model: as those of this package are."""
    envs = make(Local(), num_workers=2)
    assert envs.head is not None
    assert envs.episode_log is not None
    assert len(envs.scorer._scorers) == 1
    assert Local.models == ["ViT-B-32/laion2b_s34b_b79k"]
    envs.close()


def test_a_subclass_of_clip_gets_the_model_of_the_environment():
    kind = type("Mine", (CLIP,), {})
    env = vlmrm_gym.VLMReward(gym.make("CartPole-v1", render_mode="rgb_array"), reward=kind(prompt="an upright pole"))
    env.close()


def test_a_model_does_not_write_to_what_is_kept():
    def overwrite(self, frames):
        frames[:] = 0

    envs = make(model(encode=overwrite), episode_log=vlmrm_gym.EpisodeLog(10**6))
    envs.reset(seed=0)
    for _ in range(5):
        envs.step(np.zeros(1, dtype=int))
    with pytest.raises(ValueError, match="read-only"):
        envs.flush()
    envs.close()
