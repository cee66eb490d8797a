"""The rewards that an audit compares: which share features, and what their controls are."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from vlmrm_gym import CLIP
from vlmrm_gym.audit.rewards import ALPHAS, EncodedRewards, alpha_curves, control_rewards, encoder_key
from vlmrm_gym.errors import InputError
from vlmrm_gym.rewards.custom import ImportedReward

POLE = CLIP(prompt="a pole", baseline="a cart", alpha=0.3)


def test_rewards_share_features_if_the_model_and_what_it_sees_are_the_same():
    other, squashed = replace(POLE, prompt="another"), replace(POLE, resize_mode="longest")
    own, another = (ImportedReward(path=f"rewards:{name}") for name in ("red", "blue"))
    assert encoder_key(POLE) == encoder_key(other)
    assert len({encoder_key(spec) for spec in (POLE, own, squashed, another)}) == 4


def test_a_reward_without_texts_has_no_alphas_and_no_controls():
    own = ImportedReward(path="rewards:red")
    assert list(alpha_curves(own).values()) == [own]
    assert control_rewards(own) == {}


def test_controls_are_prompts_that_say_nothing_of_the_task():
    assert [spec.alpha for spec in alpha_curves(POLE).values()] == sorted([0.3, *ALPHAS])
    unrelated, baseline = control_rewards(POLE).values()
    assert unrelated == CLIP(prompt="a bowl of fruit on a wooden table")
    assert baseline == CLIP(prompt="a cart")
    assert list(control_rewards(CLIP(prompt="a pole")).values()) == [unrelated]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [({"clip_length": 4}, "must be of single frames"), ({"encode": np.mean, "head": None}, "must have a head")],
)
def test_what_a_single_state_has_no_reward_of_is_refused(attributes, message):
    spec = SimpleNamespace(kind="own", build=lambda device: SimpleNamespace(**attributes))
    with pytest.raises(InputError, match=f"`reward` {message}"):
        EncodedRewards([spec], "cpu")
