"""`reward=` that is no reward, and rewards that return no numbers: one clear error."""

from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import pytest
from counting_env import Counting
from own_things import Sized, mean_pixel

from vlmrm_gym import CLIP, RewardSpec, VLMRewardVectorEnv

not_callable = 3


def counting(**kwargs):
    return VLMRewardVectorEnv([Counting], scoring="step", **kwargs)


def test_bad_return_values_of_a_reward():
    for function, error, message in (
        (np.mean, ValueError, r"a number for each frame, of shape \(1,\). Received shape \(\)"),
        (lambda frames: np.zeros(2), ValueError, r"of shape \(1,\). Received shape \(2,\)"),
        (lambda frames: np.full(len(frames), np.nan), ValueError, "finite in float32. Received nan for frame 0 of 1"),
        (lambda frames: np.full(len(frames), 1e300), ValueError, r"finite in float32. Received 1e\+300"),
        (lambda frames: ["good"], TypeError, r"a number for each frame, and nothing beside them. Received \['good'\]"),
        (lambda frames: None, TypeError, "a number for each frame, and nothing beside them. Received None"),
        (lambda frames: (frames[:, 0, 0, 0], {"a": 1}), TypeError, r"Received \(array\(\[.*\), \{'a': 1\}\)"),
        (lambda frames: 1 / 0, ZeroDivisionError, "division by zero"),
        (lambda frames: frames.sort(), ValueError, "read-only"),
    ):
        envs = counting(reward=function)
        envs.reset(seed=0)
        with pytest.raises(error, match=message):
            envs.step(np.zeros(1, dtype=int))
        envs.close()


@dataclass(frozen=True)
class NoModel(RewardSpec):
    scale: int = 1

    def build(self, device):
        return 3


KIND = "test_bad_rewards:NoModel"


BAD = [
    ({"prompt": "a", "reward": mean_pixel}, TypeError, "`reward` and `prompt` cannot both be passed"),
    ({}, TypeError, "`prompt` must be a text or a list of texts. Received None"),
    ({"reward": "clop"}, ValueError, r"Received 'clop'. For the kind 'clip' pass CLIP\(...\)"),
    ({"reward": CLIP}, TypeError, "`prompt` must be a text or a list of texts. Received None"),
    ({"reward": "numpy:sort", "reward_kwargs": {"b": 1}}, TypeError, "must fit 'numpy:sort', .*'b'"),
    ({"reward": Counting}, TypeError, "a RewardModel or a callable. Received <counting_env.Counting"),
    ({"reward": "no_such_module:f"}, ValueError, "something that can be imported here. Received 'no_such_module:f'"),
    ({"reward": "test_bad_rewards:mean_pixl"}, ValueError, "raised AttributeError.*has no attribute 'mean_pixl'"),
    ({"reward": "test_bad_rewards:not_callable"}, ValueError, "must be a callable or a class. .*, which is 3"),
    ({"reward": {"kind": "clop", "prompt": "a"}}, ValueError, "kind must be one of .*'clop'. Did you mean 'clip'"),
    ({"reward": mean_pixel, "reward_kwargs": 3}, TypeError, "`reward_kwargs` must be a mapping .* Received 3"),
    ({"reward": NoModel()}, TypeError, "a RewardModel or a callable. Received 3"),
    ({"reward": NoModel(), "reward_kwargs": {"scale": 2}}, TypeError, "`reward_kwargs` is for a callable or a"),
    ({"reward": {"kind": KIND, "scael": 2}}, TypeError, "is not a field of a reward. Did you mean `scale`?"),
    ({"reward": {"kind": "own_things:Sized"}}, ValueError, "must name a dataclass that derives from"),
]  # fmt: skip


def test_bad_rewards():
    for arguments, error, message in BAD:
        with pytest.raises(error, match=message):
            counting(**arguments)


def test_what_a_module_raises_when_it_is_imported_is_reported(make_module):
    make_module("faulty_module", "no_such_name")
    for parameter in ("reward", "combine_views"):
        rule = f"`{parameter}` must name something that can be .* Received 'faulty_module:f', which raised NameError"
        kwargs = {"reward": mean_pixel, parameter: "faulty_module:f"}
        with pytest.raises(ValueError, match=rule):
            gym.make("VLMRM/Humanoid-kneel-v0", camera="front-side", **kwargs)


def test_a_render_size_that_is_not_two_positive_integers_is_refused():
    """Nor one that is not a function."""
    rule = r"`reward\.render_size` must be a function .* two integers of at least 1\. Received"
    attribute = Sized(None)
    attribute.render_size = (40, 60)
    for reward in (Sized(7), Sized((40.0, 60.0)), Sized((0, 60)), attribute):
        with pytest.raises(ValueError, match=rule):
            gym.make("VLMRM/CartPole-v1", reward=reward)
